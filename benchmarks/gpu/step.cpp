// One rank of the step benchmark on a device; step_rank.py is its twin on Python's DDP, and gpu_step.py starts both.
//
// usage: gpu_step MODEL OPTIMIZER SIZES BATCH CLASSES PRECISION DEVICE STORE RANK WORLD [TRACE]
//   MODEL      mlp, resnet or gpt; SIZES are its constructor's: 256 | width,blocks... | layers,heads,width,vocabulary,context
//   OPTIMIZER  sgd (momentum 0.9) or adamw, one tensor at a time; BATCH the shape of a rank's input
//   PRECISION  fp32, or bf16: autocast
//   DEVICE     cpu (over Gloo) or cuda (over NCCL)
//   TRACE      a folder: the backend is observed, and records there
// Reads lines from stdin:
//   N          trains N steps between two synchronised barriers; writes the nanoseconds between them and the last loss
//   phases N   trains N steps, the device synchronised behind each phase; writes the ms of a step's forward, backward and
//              optimizer, and those of a whole step without waiting in between
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/guarded.h>
#include <lockstep/record/observed_backend.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/grad_scaler.h>
#include <lockstep/train/models.h>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep::benchmark {
namespace {

// ---- the models ----

// models.py is their twin, layer for layer in the same order, so that the same torch::manual_seed gives both the same
// weights and one step the same loss.

namespace nn = torch::nn;

nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                       std::int64_t padding) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding).bias(false));
}

// As Python's nn.Linear does. LibTorch's own multiplies and then adds the bias where the input has three dimensions: a
// kernel more, and under autocast a rounding more.
torch::Tensor through(const nn::Linear& layer, const torch::Tensor& x) {
  return torch::linear(x, layer->weight, layer->bias);
}

constexpr std::int64_t kExpansion = 4;

struct BottleneckImpl : nn::Module {
  BottleneckImpl(std::int64_t in, std::int64_t width, std::int64_t stride)
      : conv1(convolution(in, width, 1, 1, 0)),
        bn1(width),
        conv2(convolution(width, width, 3, stride, 1)),
        bn2(width),
        conv3(convolution(width, width * kExpansion, 1, 1, 0)),
        bn3(width * kExpansion) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    register_module("conv3", conv3);
    register_module("bn3", bn3);
    if (stride == 1 && in == width * kExpansion) return;
    downsample = nn::Sequential(convolution(in, width * kExpansion, 1, stride, 0),
                                nn::BatchNorm2d(width * kExpansion));
    register_module("downsample", downsample);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = bn1(conv1(x)).relu_();
    y = bn2(conv2(y)).relu_();
    y = bn3(conv3(y));
    y += downsample ? downsample->forward(x) : x;
    return y.relu_();
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Conv2d conv3;
  nn::BatchNorm2d bn3;
  nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Bottleneck);

// ResNet-50 (He et al. 2016, with the stride in the 3x3 convolution, as torchvision has it): 25.6 M parameters at
// width 64. Input [N, 3, S, S], output [N, 1000].
class ResNetImpl : public nn::Module {
 public:
  // `blocks` of each of the four stages; `width` channels in the first.
  ResNetImpl(const std::vector<std::int64_t>& blocks, std::int64_t width)
      : conv1(convolution(3, width, 7, 2, 3)), bn1(width) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    std::int64_t channels = width;
    for (std::size_t stage = 0; stage < blocks.size(); ++stage)
      for (std::int64_t block = 0; block < blocks[stage]; ++block) {
        const auto its_width = width << stage;
        stages_->push_back(Bottleneck(channels, its_width, stage > 0 && block == 0 ? 2 : 1));
        channels = its_width * kExpansion;
      }
    register_module("stages", stages_);
    fc = register_module("fc", nn::Linear(channels, 1'000));
  }
  torch::Tensor forward(torch::Tensor images) {
    images = bn1(conv1(images)).relu_();
    images = torch::max_pool2d(images, 3, 2, 1);
    images = stages_->forward(images);
    return fc(images.mean({2, 3}));
  }

 private:
  nn::Conv2d conv1{nullptr};
  nn::BatchNorm2d bn1{nullptr};
  nn::Sequential stages_;
  nn::Linear fc{nullptr};
};
TORCH_MODULE(ResNet);

struct BlockImpl : nn::Module {
  BlockImpl(std::int64_t width, std::int64_t heads_)
      : ln_1(nn::LayerNormOptions({width})),
        c_attn(width, 3 * width),
        c_proj(width, width),
        ln_2(nn::LayerNormOptions({width})),
        c_fc(width, 4 * width),
        c_out(4 * width, width),
        heads(heads_) {
    register_module("ln_1", ln_1);
    register_module("c_attn", c_attn);
    register_module("c_proj", c_proj);
    register_module("ln_2", ln_2);
    register_module("c_fc", c_fc);
    register_module("c_out", c_out);
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto n = x.size(0), t = x.size(1), width = x.size(2);
    const auto parts =
        through(c_attn, ln_1(x)).view({n, t, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                        /*is_causal=*/true);
    x = x + through(c_proj, mixed.transpose(1, 2).reshape({n, t, width}));
    return x + through(c_out, torch::gelu(through(c_fc, ln_2(x)), "tanh"));
  }
  nn::LayerNorm ln_1;
  nn::Linear c_attn, c_proj;
  nn::LayerNorm ln_2;
  nn::Linear c_fc, c_out;
  std::int64_t heads;
};
TORCH_MODULE(Block);

// GPT-2's smallest (Radford et al. 2019): 12 layers of 768, 12 heads, 50,257 tokens, the output layer tied to the
// embedding: 124 M parameters. No dropout. Input int64 [N, T] with T <= context, output [N, T, vocabulary].
struct GptSize {
  std::int64_t layers = 12, heads = 12, width = 768, vocabulary = 50'257, context = 1'024;
};
class GptImpl : public nn::Module {
 public:
  explicit GptImpl(const GptSize& size)
      : wte(size.vocabulary, size.width), wpe(size.context, size.width) {
    register_module("wte", wte);
    register_module("wpe", wpe);
    for (std::int64_t layer = 0; layer < size.layers; ++layer)
      blocks_->push_back(Block(size.width, size.heads));
    register_module("blocks", blocks_);
    ln_f = register_module("ln_f", nn::LayerNorm(nn::LayerNormOptions({size.width})));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto positions = torch::arange(tokens.size(1), tokens.options());
    auto x = wte(tokens) + wpe(positions);
    x = ln_f(blocks_->forward(x));
    return torch::linear(x, wte->weight);
  }

 private:
  nn::Embedding wte{nullptr}, wpe{nullptr};
  nn::Sequential blocks_;
  nn::LayerNorm ln_f{nullptr};
};
TORCH_MODULE(Gpt);

// ---- the rank ----

constexpr std::int64_t kBatches = 4;

struct Job {
  std::string model, optimizer;
  std::vector<std::int64_t> sizes, batch;
  std::int64_t classes = 0;
  bool bf16 = false;
  c10::DeviceType device = c10::kCPU;
  InitOptions group;
};

std::vector<std::int64_t> numbers(const std::string& text) {
  std::vector<std::int64_t> found;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) found.push_back(std::stoll(word));
  return found;
}

void wait_for(const Job& job) {
  if (job.device == c10::kCUDA) torch::cuda::synchronize();
}

template <class Holder>
class Rank {
 public:
  Rank(const Job& job, Holder net, const ProcessGroupPtr& group)
      : job_(job), device_(device_of(*group)), group_(group), model_(moved(net, device_), group) {
    // Of a rank's own seed, and drawn on the CPU: the twin draws the same.
    torch::manual_seed(static_cast<std::uint64_t>(2 + job.group.rank));
    std::vector<std::int64_t> shape{kBatches};
    shape.insert(shape.end(), job.batch.begin(), job.batch.end());
    const bool tokens = job.model == "gpt";
    inputs_ = tokens ? torch::randint(job.classes, shape, torch::kInt64) : torch::randn(shape);
    targets_ = torch::randint(job.classes, tokens ? shape : std::vector{kBatches, job.batch[0]},
                              torch::kInt64);
    inputs_ = inputs_.to(device_);
    targets_ = targets_.to(device_);
    if (job.optimizer == "adamw")
      optimizer_ = std::make_unique<AdamW>(model_.parameters(), AdamWOptions(1e-4));
    else
      optimizer_ = std::make_unique<torch::optim::SGD>(
          model_.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  }

  void train(int steps) {
    at::Tensor loss;
    barrier(*group_);
    wait_for(job_);
    const auto start = monotonic_ns();
    for (int step = 0; step < steps; ++step) {
      optimizer_->zero_grad();
      loss = forward();
      loss.backward();
      optimizer_->step();
    }
    wait_for(job_);
    const auto took = monotonic_ns() - start;
    std::printf("%lld %.9g\n", static_cast<long long>(took), loss.item<double>());
    std::fflush(stdout);
  }

  void phases(int steps) {
    std::array<double, 4> ms{};
    const auto timed = [&](double& sum, const auto& work) {
      const auto start = monotonic_ns();
      work();
      wait_for(job_);
      sum += static_cast<double>(monotonic_ns() - start) / 1e6 / steps;
    };
    for (int step = 0; step < steps; ++step) {
      at::Tensor loss;
      optimizer_->zero_grad();
      timed(ms[0], [&] { loss = forward(); });
      timed(ms[1], [&] { loss.backward(); });
      timed(ms[2], [&] { optimizer_->step(); });
    }
    timed(ms[3], [&] {
      for (int step = 0; step < steps; ++step) {
        optimizer_->zero_grad();
        forward().backward();
        optimizer_->step();
      }
    });
    std::printf("%.6g %.6g %.6g %.6g\n", ms[0], ms[1], ms[2], ms[3]);
    std::fflush(stdout);
  }

 private:
  static Holder moved(Holder net, const c10::Device& device) {
    net->to(device);
    return net;
  }

  at::Tensor forward() {
    const auto at = done_++ % kBatches;
    std::optional<Autocast> autocast;
    if (job_.bf16) autocast.emplace(job_.device, at::kBFloat16);
    auto outputs = model_(inputs_[at]);
    return torch::nn::functional::cross_entropy(outputs.view({-1, job_.classes}),
                                                targets_[at].view({-1}));
  }

  const Job& job_;
  c10::Device device_;
  ProcessGroupPtr group_;
  DistributedDataParallel<Holder> model_;
  at::Tensor inputs_, targets_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::int64_t done_ = 0;
};

template <class Holder>
void serve(const Job& job, Holder net, const ProcessGroupPtr& group) {
  Rank<Holder> rank(job, std::move(net), group);
  for (std::string line; std::getline(std::cin, line);) {
    if (line.starts_with("phases "))
      rank.phases(std::stoi(line.substr(7)));
    else
      rank.train(std::stoi(line));
  }
}

void observe(InitOptions& group, const std::string& folder) {
  const auto writer = std::make_shared<trace::Writer>(
      folder, trace::Participant{.rank = group.rank, .world_size = group.world_size});
  group.decorate = [writer](BackendPtr backend, const StorePtr&) {
    return record::observe(std::move(backend), writer);
  };
}

void run(const Job& job) {
  load_backend(job.group.backend);
  if (job.device == c10::kCPU) torch::set_num_threads(1);
  auto group = init_process_group(job.group);
  torch::manual_seed(1);
  const auto& sizes = job.sizes;
  if (job.model == "mlp")
    serve(job, Mlp(784, sizes.at(0), job.classes), group);
  else if (job.model == "resnet")
    serve(job, ResNet(std::vector(sizes.begin() + 1, sizes.end()), sizes.at(0)), group);
  else if (job.model == "gpt")
    serve(job, Gpt(GptSize{sizes.at(0), sizes.at(1), sizes.at(2), sizes.at(3), sizes.at(4)}),
          group);
  else
    throw UsageError("the model must be mlp, resnet or gpt, and is \"" + job.model + "\"");
  destroy_process_group(group);
}

}  // namespace
}  // namespace lockstep::benchmark

int main(int argc, char** argv) {
  if (argc != 11 && argc != 12) {
    std::fprintf(stderr,
                 "usage: gpu_step mlp|resnet|gpt sgd|adamw SIZES BATCH CLASSES fp32|bf16 cpu|cuda "
                 "STORE RANK WORLD [TRACE]\n");
    return lockstep::kUsage;
  }
  return lockstep::launch::guarded([&] {
    lockstep::benchmark::Job job;
    job.model = argv[1];
    job.optimizer = argv[2];
    job.sizes = lockstep::benchmark::numbers(argv[3]);
    job.batch = lockstep::benchmark::numbers(argv[4]);
    job.classes = std::stoll(argv[5]);
    job.bf16 = std::string(argv[6]) == "bf16";
    const bool cuda = std::string(argv[7]) == "cuda";
    job.device = cuda ? c10::kCUDA : c10::kCPU;
    job.group.backend = cuda ? "nccl" : "gloo";
    job.group.init_method = std::string("file://") + argv[8];
    job.group.rank = job.group.local_rank = std::stoi(argv[9]);
    job.group.world_size = std::stoi(argv[10]);
    if (argc == 12) lockstep::benchmark::observe(job.group, argv[11]);
    lockstep::benchmark::run(job);
  });
}
