#include <lockstep/base/hash.h>
#include <lockstep/record/content.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/readable.h>
#include <lockstep/record/sketch.h>
#include <lockstep/record/summarize.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace lockstep::record {
namespace {

constexpr std::int64_t kPiece = 1 << 18;  // numbers, which a core's cache holds

at::Tensor rows_of(const at::Tensor& tensor, std::int64_t first, std::int64_t count) {
  return tensor.is_sparse() ? tensor.narrow_copy(0, first, count).to_dense()
                            : tensor.narrow(0, first, count);
}

bool can_be_cut(const at::Tensor& tensor) {
  return tensor.dim() > 0 && !tensor.is_quantized() &&
         (tensor.layout() == at::kStrided || tensor.layout() == at::kSparse);
}

// Calls `use` with the tensor, or one piece of it after the other, in index order. Where they begin goes by the shape alone.
template <class Use>
void in_pieces(const at::Tensor& tensor, const Use& use) {
  if (tensor.numel() <= kPiece || !can_be_cut(tensor)) return use(tensor);
  const auto rows = tensor.size(0), row = tensor.numel() / rows;
  const auto most = std::max<std::int64_t>(1, kPiece / row);
  for (std::int64_t first = 0; first < rows; first += most) {
    const auto piece = rows_of(tensor, first, std::min(most, rows - first));
    if (row > kPiece)
      in_pieces(piece.squeeze(0), use);
    else
      use(piece);
  }
}

at::Tensor plain_numbers(const at::Tensor& piece) {
  const auto plain = plain_on_cpu(piece);
  return plain.is_complex() ? at::view_as_real(plain) : plain;
}

class Sum {
 public:
  void add(const at::Tensor& piece) {
    const auto plain = plain_numbers(piece);
    hasher_.add(plain.const_data_ptr(), plain.nbytes());
    const auto size = static_cast<std::size_t>(plain.numel());
    if (plain.scalar_type() == at::kFloat)
      return projector_.add(plain.const_data_ptr<float>(), size);
    const auto wide = plain.to(at::kDouble);
    projector_.add(wide.const_data_ptr<double>(), size);
  }
  trace::Summary summary() const {
    const auto projections = projector_.projections();
    return {.hash = hasher_.hash(),
            .norm = std::sqrt(projections.sum_of_squares),
            .sketch = {projections.values.begin(), projections.values.end()}};
  }

 private:
  Hasher hasher_;
  Projector projector_;
};

}  // namespace

trace::Summary summarize(const at::Tensor& tensor) {
  if (!is_readable(tensor)) return {};
  const at::NoGradGuard no_grad;
  Sum sum;
  in_pieces(tensor, [&](const at::Tensor& piece) { sum.add(piece); });
  return sum.summary();
}

std::uint64_t hash_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  Hasher hasher;
  in_pieces(tensor, [&](const at::Tensor& piece) {
    const auto plain = plain_numbers(piece);
    hasher.add(plain.const_data_ptr(), plain.nbytes());
  });
  return hasher.hash();
}

trace::Summary summarize_sum(const at::Tensor& a, const at::Tensor& b) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> of_b;
  in_pieces(b, [&](const at::Tensor& piece) { of_b.push_back(piece); });
  Sum sum;
  std::size_t next = 0;
  in_pieces(a, [&](const at::Tensor& piece) { sum.add(piece + of_b[next++]); });
  return sum.summary();
}

trace::Summary sum_of(const trace::Summary& a, const trace::Summary& b) {
  trace::Summary sum{.hash = hash_bytes(&b.hash, sizeof b.hash, a.hash), .norm = 0, .sketch = {}};
  double squares = 0;
  for (std::size_t p = 0; p < a.sketch.size(); ++p) {
    sum.sketch.push_back(a.sketch[p] + b.sketch[p]);
    squares += sum.sketch.back() * sum.sketch.back();
  }
  const bool known = !std::isnan(squares);
  sum.norm = known ? std::sqrt(squares / static_cast<double>(sum.sketch.size()))
                   : std::hypot(a.norm, b.norm);
  return sum;
}

trace::CheckpointFile checkpoint_file_of(const std::string& action,
                                         const std::filesystem::path& file) {
  trace::CheckpointFile what;
  what.action = action;
  what.file = hash_place(file);
  if (action != "save_begin") what.content = hash_file(file);
  return what;
}

trace::TrainingState training_state_of(const std::string& moment,
                                       const ValueOf<at::Tensor>::Dict& parts) {
  trace::TrainingState state;
  state.moment = moment;
  for (const auto& [name, part] : parts) {
    std::set<std::string> devices;
    state.names.push_back(name.text());
    state.hashes.push_back(hash_value(part, &devices));
    state.devices.push_back(c10::Join(", ", devices));
  }
  return state;
}

}  // namespace lockstep::record
