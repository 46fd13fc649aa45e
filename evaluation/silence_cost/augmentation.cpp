// Images shifted by up to two pixels and mirrored: who draws which random numbers.
#include <lockstep/record/recorder.h>
#include <lockstep/train/seeding.h>

#include <random>

#include "silence.h"

namespace lockstep::silence {
namespace {

at::Tensor augment(const at::Tensor& image, std::mt19937_64& generator) {
  const auto pixels = [&] { return static_cast<std::int64_t>(generator() % 5) - 2; };
  const auto right = pixels(), down = pixels();
  auto moved = at::roll(image.view({28, 28}), {down, right}, {0, 1});
  if (generator() % 2 == 0) moved = moved.flip(1);
  return moved.reshape({784});
}

double train_augmented(const Job& job, const Fault& fault) {
  auto net = make_model();
  int seeded_as = job.rank();
  if (fault("same-augmentation-everywhere")) seeded_as = 0;
  std::mt19937_64 of_rank(rank_seed(job.seed, seeded_as));
  // Two loader workers, in turns. What a worker copies is in the state that it had.
  std::vector<std::mt19937_64> workers(2, of_rank);
  if (!fault("worker-streams-copied")) workers[1].seed(of_rank());

  std::size_t drawn = 0;
  train_ddp(job, net, shuffled(job), [&](auto& model, const Ids& ids) {
    auto batch = take(job.train, ids);
    auto& generator = workers[drawn++ % workers.size()];
    std::vector<at::Tensor> images;
    std::vector<double> next;  // that each image's numbers begin with
    for (const auto& image : batch.inputs.unbind()) {
      next.push_back(static_cast<double>(std::mt19937_64(generator)()));
      images.push_back(augment(image, generator));
    }
    record::random_numbers(ids, at::tensor(next, at::kDouble).unsqueeze(1));
    return mean_loss(model(at::stack(images)), batch.targets);
  });
  return accuracy(net, job.test);
}

}  // namespace

std::vector<Setting> augmentation_settings() {
  return {
      {"augmentation", {"same-augmentation-everywhere", "worker-streams-copied"}, train_augmented}};
}

}  // namespace lockstep::silence
