// Tensors whose numbers cannot be read, and tensors that the program swaps.
#include <gtest/gtest.h>
#include <lockstep/base/file.h>
#include <lockstep/record/content.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/readable.h>
#include <lockstep/record/recorder.h>
#include <lockstep/trace/reader.h>

namespace lockstep::record {
namespace {

TEST(Readable, IsWhatHasNumbers) {
  for (const auto& tensor :
       {torch::ones({3}), torch::ones({}), torch::empty({0, 3}), torch::ones({3}, torch::kBool),
        torch::ones({3}, torch::kUInt16), torch::ones({3}, torch::kComplexFloat),
        torch::ones({3}).to(torch::kFloat8_e4m3fn), torch::ones({3}).to(torch::kFloat8_e8m0fnu),
        torch::eye(3).to_sparse(), torch::eye(3).to_sparse_csr(), torch::ones({4, 4}).t(),
        at::quantize_per_tensor(torch::ones({4}), 0.5, 0, at::kQInt8),
        torch::ones({1}).expand({1000}), torch::ones({4, 4}).slice(0, 1)}) {
    EXPECT_TRUE(is_readable(tensor)) << tensor.scalar_type() << " " << tensor.layout();
    EXPECT_EQ(summarize(tensor).sketch.size(), static_cast<std::size_t>(trace::kSketch));
  }
  if (at::hasMKLDNN()) EXPECT_TRUE(is_readable(torch::ones({3, 3}).to_mkldnn()));
}

TEST(Readable, IsNothingElse) {
  auto freed = torch::ones({10});
  freed.storage().unsafeGetStorageImpl()->set_nbytes(0);
  const auto huge = torch::zeros({1}).expand({std::int64_t{10'000'000'000}});
  const auto wide = torch::sparse_coo_tensor(torch::zeros({2, 1}, torch::kInt64), torch::ones({1}),
                                             {1'000'000, 1'000'000});
  for (const auto& tensor :
       {at::Tensor(), torch::empty({3}, torch::kMeta), torch::empty({3}, at::kBits8),
        torch::empty({3}, at::kFloat4_e2m1fn_x2), torch::empty({3}, at::kInt4),
        at::_nested_tensor_from_tensor_list({torch::ones({2}), torch::ones({3})}), freed, huge,
        wide}) {
    EXPECT_FALSE(is_readable(tensor));
    EXPECT_TRUE(summarize(tensor).sketch.empty());
    EXPECT_TRUE(hash_samples({tensor}, true).empty());
    if (tensor.defined()) hash_value({tensor}, std::make_unique<std::set<std::string>>().get());
  }
}

TEST(Readable, WhatIsExpandedIsLookedAtOnce) {
  const auto numbers = torch::arange(6).view({2, 1, 3});
  EXPECT_EQ(without_repeats(numbers.expand({2, 5, 3})).sizes(), numbers.sizes());
  EXPECT_EQ(without_repeats(torch::ones({1, 3}).expand({4, 3}), 1).size(0), 4);
}

// As Python's optimizers are told: anew once a tensor was let go.
TEST(LetGo, ATensorHasNoOtherOwnerAndItsModelIsRecordedAnew) {
  const TemporaryFolder folder("lockstep-record");
  {
    Recorder recorder(
        std::make_shared<trace::Writer>(folder.path(), trace::Participant{.world_size = 1}),
        {.hooks = false});
    auto weight = torch::ones({3}, torch::requires_grad()),
         bias = torch::ones({1}, torch::requires_grad()),
         other = torch::ones({2}, torch::requires_grad()), teacher = torch::ones({2});
    recorder.outside("teacher", "weight", teacher);
    const auto update = [&] {
      torch::optim::SGD optimizer({weight, bias}, 0.1), of_other({other}, 0.1);
      recorder.optimizer_made(optimizer);
      recorder.optimizer_made(of_other);
      auto loss = (weight * 2).sum() + bias.sum() + other.sum();
      recorder.backward(loss);
      recorder.update_begins(optimizer);
      recorder.update_ended(optimizer);
    };
    update();
    EXPECT_GT(weight.use_count(), 1u);
    recorder.let_go({weight, teacher});
    for (const auto& tensor : {&weight, &teacher}) {
      EXPECT_EQ(tensor->use_count(), 1u);
      EXPECT_EQ(tensor->weak_use_count(), 1u);
    }
    weight = torch::ones({3}, torch::dtype(torch::kFloat64).requires_grad(true));
    update();
  }
  const auto rank = trace::read(folder.path()).ranks.at(0);
  const auto models = rank.all<trace::Model>();
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0].event->dtypes, (std::vector<std::string>{"float32", "float32", "float32"}));
  EXPECT_EQ(models[1].event->dtypes, (std::vector<std::string>{"float64", "float32"}));
  EXPECT_EQ(rank.all<trace::Update>().size(), 2u);
}

}  // namespace
}  // namespace lockstep::record
