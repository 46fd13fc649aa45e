// Tensors into files and back: types, layouts, shared memory, devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>

#include "../support/little_memory.h"
#include "file.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto x = a.contiguous(), y = b.contiguous();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

at::Tensor round_trip(const at::Tensor& tensor) {
  return CheckpointFile().round_trip(tensor).value.as_tensor();
}

TEST(CheckpointTensors, EveryType) {
  for (const auto type :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
        at::kChar, at::kByte, at::kBool, at::kComplexFloat, at::kComplexDouble, at::kUInt16,
        at::kUInt32, at::kUInt64, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz,
        at::kFloat8_e5m2fnuz}) {
    const auto tensor = torch::arange(12).reshape({3, 4}).to(type);
    EXPECT_TRUE(same_bits(round_trip(tensor), tensor)) << at::toString(type);
  }
  const auto odd = torch::tensor({std::nan(""), -0.0, 1e-310, HUGE_VAL}, torch::kDouble);
  EXPECT_TRUE(same_bits(round_trip(odd), odd));
}

TEST(CheckpointTensors, EveryLayout) {
  const auto base = torch::arange(24).reshape({4, 6});
  for (const auto& tensor :
       {base.t(), base.slice(0, 1, 3), base.slice(1, 0, 6, 2), base.select(0, 2), base[1][2],
        torch::tensor(3.5), torch::empty({0}), torch::empty({3, 0, 2}), base.slice(0, 4),
        base.flip(0), torch::ones({1}).expand({5, 5}),
        torch::rand({2, 3, 4, 5}).to(at::MemoryFormat::ChannelsLast)}) {
    const auto back = round_trip(tensor);
    EXPECT_TRUE(same_bits(back, tensor)) << tensor.sizes();
    EXPECT_EQ(back.strides(), tensor.strides());
  }
  const auto conjugated = torch::view_as_complex(torch::rand({3, 2})).conj();
  EXPECT_TRUE(same_bits(round_trip(conjugated), conjugated.resolve_conj()));
}

TEST(CheckpointTensors, SharedMemoryStaysShared) {
  const CheckpointFile file;
  const auto whole = torch::zeros({1000});
  const auto loaded = file.round_trip(Value::Dict{
      {"whole", whole}, {"part", whole.slice(0, 10, 20)}, {"other", torch::zeros({1000})}});
  loaded.at("part").as_tensor().fill_(7);
  EXPECT_EQ(loaded.at("whole").as_tensor().sum().item<float>(), 70);
  EXPECT_EQ(loaded.at("other").as_tensor().sum().item<float>(), 0);
  EXPECT_LT(std::filesystem::file_size(file.path), 2 * 4000 + 2000u) << "written once";
}

// A save needs no second copy of what it saves, a load one copy.
TEST(CheckpointTensors, MemoryStaysSmall) {
  if (lockstep::test::kSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
  const auto peak_mib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss / 1024;
  };
  const CheckpointFile file;
  Value::Dict value;
  for (int i = 0; i < 8; ++i) value[i] = torch::ones({16, 1024, 256});  // 128 MiB together
  const auto before = peak_mib();
  save_checkpoint(file.path, value, {.sync = false});
  const auto saved = peak_mib();
  EXPECT_LT(saved - before, 16);
  const auto loaded = load_checkpoint(file.path);
  EXPECT_LT(peak_mib() - saved, 128 + 16);
}

TEST(CheckpointTensors, RequiresGradIsKept) {
  const auto leaf = torch::rand({2}).set_requires_grad(true);
  EXPECT_TRUE(round_trip(leaf).requires_grad());
  EXPECT_FALSE(round_trip(leaf.detach()).requires_grad());
}

TEST(CheckpointTensors, RefusesWhatAFileCannotHold) {
  const CheckpointFile file;
  const auto refused = [&](const at::Tensor& tensor) {
    return refusal([&] { file.round_trip(Value::Dict{{"a", Value::List{1, tensor}}}); });
  };
  EXPECT_THAT(refused(at::Tensor()),
              AllOf(HasSubstr(file.path.string()), HasSubstr("a.1 is an undefined")));
  EXPECT_THAT(refused(torch::eye(3).to_sparse()), HasSubstr("a.1 is a Sparse"));
  EXPECT_THAT(refused(torch::empty({2}, torch::kMeta)), HasSubstr("a.1 is a Meta"));
  EXPECT_THAT(refused(torch::quantize_per_tensor(torch::rand({2}), 0.1, 0, torch::kQInt8)),
              HasSubstr("only plain dense"));
  const auto bytes = torch::zeros({8}, torch::kByte);
  EXPECT_THAT(refusal([&] {
                file.round_trip(Value::List{bytes, bytes.view(torch::kFloat)});
              }),
              HasSubstr("1 shares memory with a tensor of another type (uint8, this one float32)"));
  EXPECT_FALSE(std::filesystem::exists(file.path));
}

TEST(MapLocation, DefaultIsTheDeviceItWasSavedFrom) {
  const CheckpointFile file;
  const Value value = Value::Dict{{"model", Value::Dict{{"w", torch::ones({2})}}}};
  const auto loaded = file.round_trip(value);
  EXPECT_EQ(loaded.locations, (std::map<std::string, std::string>{{"model.w", "cpu"}}));

  const SaveOptions as_on_cuda{.sync = false, .location = "cuda:7"};
  EXPECT_THAT(refusal([&] { file.round_trip(value, as_on_cuda); }),
              AllOf(HasSubstr(file.path.string()), HasSubstr("model.w"), HasSubstr("cuda:7"),
                    HasSubstr("map_location")));
  const auto moved = file.round_trip(value, as_on_cuda, {.map_location = "cpu"});
  EXPECT_TRUE(moved.at("model").at("w").as_tensor().is_cpu());
  EXPECT_EQ(moved.locations.at("model.w"), "cuda:7");
}

TEST(MapLocation, MapsAndFunctions) {
  using Map = std::map<std::string, std::string>;
  const MapLocation to_cpu(Map{{"cuda:0", "cpu"}});
  EXPECT_TRUE(to_cpu("cuda:0").is_cpu());
  EXPECT_THAT(refusal([&] { to_cpu("cuda:100"); }), HasSubstr("cuda:100"));
  EXPECT_TRUE(MapLocation(c10::Device("cpu"))("cuda:3").is_cpu());
  std::vector<std::string> asked;
  const MapLocation function([&](const std::string& location) -> std::optional<c10::Device> {
    asked.push_back(location);
    if (location == "cpu") return std::nullopt;
    return c10::Device("cpu");
  });
  EXPECT_TRUE(function("cuda:1").is_cpu());
  EXPECT_TRUE(function("cpu").is_cpu());
  EXPECT_THAT(asked, ::testing::ElementsAre("cuda:1", "cpu"));
  EXPECT_THAT(refusal([] {
                MapLocation(Map{{"cpu", "cuda:100"}})("cpu");
              }),
              HasSubstr("map_location sends cpu to cuda:100"));
  EXPECT_THAT(refusal([] { MapLocation()("toaster"); }), HasSubstr("no device that torch knows"));
}

TEST(CheckpointTensors, DamagedOrMissing) {
  const CheckpointFile file;
  EXPECT_THAT(refusal([&] { load_checkpoint(file.path); }),
              AllOf(HasSubstr(file.path.string()), HasSubstr("No such file")));
  save_checkpoint(file.path, Value::Dict{{"w", torch::ones({100})}}, {.sync = false});
  auto bytes = read_file(file.path);
  bytes[bytes.find("\x80\x3f") + 40] ^= 1;
  write_file(file.path, bytes);
  EXPECT_THAT(refusal([&] { load_checkpoint(file.path); }),
              AllOf(HasSubstr(file.path.string()), HasSubstr("w: "), HasSubstr("checksum")));
}

TEST(CheckpointTensors, FolderOfNumberedOnes) {
  const TemporaryFolder folder("lockstep-checkpoint");
  CheckpointFolder checkpoints(folder.path() / "run", {.keep = 2, .sync = false});
  for (int epoch = 0; epoch < 4; ++epoch)
    save_checkpoint(checkpoints, epoch,
                    Value::Dict{{"epoch", epoch}, {"w", torch::full({3}, epoch)}});
  EXPECT_EQ(checkpoints.all().size(), 2u);
  const auto latest = load_checkpoint(*checkpoints.latest());
  EXPECT_EQ(latest.at("epoch").as_int(), 3);
  EXPECT_EQ(latest.at("w").as_tensor().sum().item<std::int64_t>(), 9);
}

TEST(RngState, GoesOnWhereItWasTaken) {
  torch::manual_seed(3);
  torch::rand({5});
  torch::randn({17});  // leaves a normal number over
  const CheckpointFile file;
  const auto state = file.round_trip(get_rng_state()).value.as_tensor();
  EXPECT_EQ(state.numel(), 5056);
  const auto next = torch::randn({20});
  torch::rand({100});
  set_rng_state(state);
  EXPECT_TRUE(torch::equal(torch::randn({20}), next));

  auto own = at::detail::createCPUGenerator(5);
  const auto before = get_rng_state(own);
  const auto first = torch::rand({4}, own);
  set_rng_state(own, before);
  EXPECT_TRUE(torch::equal(torch::rand({4}, own), first));
}

TEST(RngState, RefusesWhatIsNone) {
  EXPECT_THAT(refusal([] { set_rng_state(torch::zeros({5056})); }), HasSubstr("byte tensor"));
  EXPECT_THAT(refusal([] { set_rng_state(torch::zeros({7}, torch::kByte)); }),
              HasSubstr("not a state"));
  EXPECT_THAT(refusal([] { set_rng_state(torch::full({5056}, 255, torch::kByte)); }),
              HasSubstr("not a state"));
  EXPECT_THAT(refusal([] { set_rng_state({}); }), HasSubstr("undefined"));
  // One byte in the file, and 2^60 where it is made contiguous.
  EXPECT_THAT(refusal([] {
                set_rng_state(torch::zeros({1}, torch::kByte).expand({std::int64_t{1} << 60}));
              }),
              HasSubstr("it has 1152921504606846976 bytes, the generator's own 5056"));
}

}  // namespace
}  // namespace lockstep
