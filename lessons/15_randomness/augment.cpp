#include "augment.h"

#include <lockstep/lesson/figures.h>

#include <set>

using namespace lockstep;

at::Tensor draw(std::mt19937_64& generator) {
  const auto number = [&] { return static_cast<double>(generator() >> 11) * 0x1p-53; };
  const double right = number(), down = number(), mirror = number();
  return at::tensor({right, down, mirror}, at::kDouble);
}

at::Tensor augment(const at::Tensor& images, const at::Tensor& numbers) {
  std::vector<at::Tensor> augmented;
  for (std::int64_t i = 0; i < images.size(0); ++i) {
    const auto pixels = [&](std::int64_t which) {
      return static_cast<std::int64_t>(numbers[i][which].item<double>() * 5) - 2;
    };
    auto image = at::roll(images[i].view({28, 28}), {pixels(1), pixels(0)}, {0, 1});
    if (numbers[i][2].item<double>() < 0.5) image = image.flip(1);
    augmented.push_back(image.reshape({784}));
  }
  return at::stack(augmented);
}

void tell_numbers(RankContext& context, const std::vector<std::int64_t>& ids,
                  const at::Tensor& numbers) {
  context.random_numbers(ids, numbers);
  add_figure(context, "first_number", numbers[0][0].item<double>());
}

void OfAugmented::fetch(const Fetch& fetch) {
  Notes::fetch(fetch);
  context().outcome().figures.erase("batch_size");  // one_process_losses() asks for it
}

Measured different_draws(const Outcomes& outcomes) {
  std::set<double> different;
  double batches = 0;
  for (const auto& outcome : outcomes)
    if (const auto found = outcome.figures.find("first_number"); found != outcome.figures.end()) {
      different.insert(found->second.begin(), found->second.end());
      batches += static_cast<double>(found->second.size());
    }
  return {.expected = 1,
          .observed = static_cast<double>(different.size()) / batches,
          .tolerance = 1e-9};
}
