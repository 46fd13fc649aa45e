// What both parts do to their images, and how the oracle counts it.
#pragma once

#include <lockstep/lesson/lesson.h>
#include <lockstep/train/dataset.h>

#include <cstdint>
#include <random>
#include <vector>

// Three random numbers in [0, 1), float64: an image's shift to the right, shift down, mirroring.
at::Tensor draw(std::mt19937_64& generator);

// Images [N, 784], shifted (around the edges) by up to 2 pixels each way and mirrored half of the
// time, as row i of `numbers` [N, 3] says.
at::Tensor augment(const at::Tensor& images, const at::Tensor& numbers);

// Tells the detectors and the oracle which numbers were drawn for a batch.
void tell_numbers(lockstep::RankContext& context, const std::vector<std::int64_t>& ids,
                  const at::Tensor& numbers);

// Augmented images are not in the data set, so no one-process reference is made from their ids.
class OfAugmented final : public lockstep::Notes {
 public:
  OfAugmented(lockstep::RankContext& job, const lockstep::Fault&) : Notes(job) {}
  void fetch(const lockstep::Fetch& fetch) override;
};

// Different draws (a batch's first number), over the batches of all ranks: 1 where no batch got the
// numbers of another.
lockstep::Measured different_draws(const lockstep::Outcomes& outcomes);
