#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/idx_file.h>

#include <algorithm>
#include <optional>

namespace lockstep {
namespace {

constexpr std::int64_t kSide = 28;
constexpr std::int64_t kClasses = 10;
constexpr std::int64_t kTrainSize = 60000;
constexpr std::int64_t kTestSize = 10000;
constexpr const char* kVariable = "LOCKSTEP_DATA";
constexpr const char* kDebianFolder = "/usr/share/datasets/fashion-mnist";
constexpr const char* kKnownFile = "train-images-idx3-ubyte.gz";

// Nothing where there is no data. A folder that the user named and that holds none is an error,
// never a reason to look elsewhere.
std::optional<std::filesystem::path> find_fashion_mnist() {
  const auto named = environment(kVariable);
  const std::filesystem::path folder = named ? *named : std::string(kDebianFolder);
  if (std::filesystem::exists(folder / kKnownFile)) return folder;
  if (named)
    throw Error("Fashion-MNIST: " + std::string(kVariable) + " names " + *named +
                ", which has no " + kKnownFile + ". Correct it, or unset it to use " +
                kDebianFolder + ".");
  return std::nullopt;
}

at::Tensor labels_of(const std::filesystem::path& path, const IdxData& data) {
  for (std::size_t i = 0; i < data.values.size(); ++i)
    if (data.values[i] >= kClasses)
      throw Error(path.string() + ": at offset " +
                  std::to_string(data.header_bytes + static_cast<std::int64_t>(i)) +
                  " of the unpacked data: expected a label from 0 to 9, found " +
                  std::to_string(data.values[i]) + ". The file is damaged; install it again.");
  auto bytes = const_cast<std::uint8_t*>(data.values.data());
  return at::from_blob(bytes, {data.items}, at::kByte).to(at::kLong);
}

// Rows [begin, end) of normal numbers. Drawn as float64: the float32 generator's vectorised code
// rounds otherwise on other processors.
void fill_normal(at::Tensor& rows, at::Generator& generator) {
  constexpr std::int64_t kBlock = 2048;
  for (std::int64_t begin = 0; begin < rows.size(0); begin += kBlock) {
    auto block = rows.slice(0, begin, begin + kBlock);
    block.copy_(at::randn(block.sizes(), generator, at::kDouble));
  }
}

// Samples of the stream `sample_seed`, labelled by the map of `map_seed`.
TensorData labelled_by_map(std::int64_t n, std::int64_t features, std::int64_t classes,
                           std::uint64_t map_seed, std::uint64_t sample_seed) {
  if (n <= 0 || features <= 0 || classes <= 0)
    throw UsageError("synthetic: expected n, features and classes above 0, found " +
                     std::to_string(n) + ", " + std::to_string(features) + " and " +
                     std::to_string(classes) + ".");
  torch::NoGradGuard no_grad;
  auto map_generator = at::detail::createCPUGenerator(map_seed);
  const auto map = at::randn({features, classes}, map_generator, at::kDouble);
  // The map's own generator goes on with the samples where both have one seed.
  auto generator =
      sample_seed == map_seed ? map_generator : at::detail::createCPUGenerator(sample_seed);
  TensorData data{at::empty({n, features}, at::kFloat), at::empty({n}, at::kLong)};
  fill_normal(data.inputs, generator);
  constexpr std::int64_t kBlock = 2048;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const auto inputs = data.inputs.slice(0, begin, begin + kBlock).to(at::kDouble);
    data.targets.slice(0, begin, begin + kBlock).copy_(inputs.matmul(map).argmax(1));
  }
  return data;
}

const char* phase_of(Split split) {
  return split == Split::train ? "train" : "evaluation";
}

}  // namespace

std::filesystem::path fashion_mnist_folder() {
  if (auto folder = find_fashion_mnist()) return *folder;
  throw Error("Fashion-MNIST was not found: " + std::string(kVariable) + " is not set and " +
              kDebianFolder + " has no " + kKnownFile + ". Install dataset-fashion-mnist, or set " +
              kVariable + " to the folder of its four .gz files.");
}

TensorData fashion_mnist(Split split, std::int64_t limit) {
  return fashion_mnist(fashion_mnist_folder(), split, limit);
}

TensorData fashion_mnist(const std::filesystem::path& folder, Split split, std::int64_t limit) {
  const std::string prefix = split == Split::train ? "train" : "t10k";
  const auto image_path = folder / (prefix + "-images-idx3-ubyte.gz");
  const auto label_path = folder / (prefix + "-labels-idx1-ubyte.gz");
  const auto images = read_idx(image_path, {kSide, kSide}, limit);
  const auto labels = read_idx(label_path, {}, limit);
  if (images.count != labels.count)
    throw Error(label_path.string() + ": at offset 4 of the unpacked data: expected " +
                std::to_string(images.count) + " labels, as many as images in " +
                image_path.string() + ", found " + std::to_string(labels.count) + ".");
  auto bytes = const_cast<std::uint8_t*>(images.values.data());
  auto pixels = at::from_blob(bytes, {images.items, kSide * kSide}, at::kByte);
  // As torchvision's ToTensor: float32, divided (not multiplied by a rounded 1/255).
  return {pixels.to(at::kFloat).div_(255), labels_of(label_path, labels), phase_of(split)};
}

TensorData synthetic(std::int64_t n, std::int64_t features, std::int64_t classes,
                     std::uint64_t seed) {
  return labelled_by_map(n, features, classes, seed, seed);
}

TensorData fashion_mnist_or_synthetic(Split split, std::int64_t limit, std::string* which) {
  const auto folder = find_fashion_mnist();
  if (which) *which = folder ? "Fashion-MNIST" : "synthetic";
  if (folder) return fashion_mnist(*folder, split, limit);
  const std::int64_t size = split == Split::train ? kTrainSize : kTestSize;
  const std::int64_t n = limit <= 0 ? size : std::min(limit, size);
  // One map for both splits, and no sample in both.
  auto data = labelled_by_map(n, kSide * kSide, kClasses, 0, split == Split::train ? 0 : 1);
  data.phase = phase_of(split);
  return data;
}

void tell_taken(const TensorData& data, const std::vector<std::int64_t>& indices) {
  tell([&](Observer& to) {
    auto ids = indices;
    const auto known = static_cast<std::int64_t>(data.ids.size());
    for (auto& id : ids)
      if (id >= 0 && id < known) id = data.ids[static_cast<std::size_t>(id)];
    to.fetch({.phase = data.phase,
              .inputs = data.inputs,
              .targets = data.targets,
              .all_ids = data.ids,
              .global_size = data.global_size > 0 ? data.global_size : data.size(),
              .ids = ids});
  });
}

TensorData take(const TensorData& data, const std::vector<std::int64_t>& indices) {
  tell_taken(data, indices);
  return rows_of(data, indices);
}

TensorData rows_of(const TensorData& data, const std::vector<std::int64_t>& indices) {
  for (std::size_t i = 0; i < indices.size(); ++i)
    if (indices[i] < 0 || indices[i] >= data.size())
      throw Error("take: index " + std::to_string(indices[i]) + " (number " + std::to_string(i) +
                  " of the list) is out of range: the data have " + std::to_string(data.size()) +
                  " samples.");
  const auto rows = at::tensor(indices, at::kLong);
  return {data.inputs.index_select(0, rows), data.targets.index_select(0, rows), data.phase};
}

}  // namespace lockstep
