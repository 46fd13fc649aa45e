// Lesson 17, part "streams": a gradient bucket that one stream writes, and another reduces.
//
// Concept:  a stream is a queue: its pieces of work run one after another, and beside those of
//           other streams. What is done on one and needed on another is put in order by an event:
//           recorded after the one, waited for before the other. The program's own order orders
//           nothing: its calls may return before the work has begun.
// Symptom:  none, as long as the GPU is quick; wrong numbers, now and then, under load. Here a
//           kernel that does nothing for half a second holds the writer up, so that it shows every
//           time.
#include "parts.h"
#ifdef LOCKSTEP_HAVE_CUDA
#include <lockstep/gpu/kernels/bucket.h>
#include <lockstep/gpu/kernels/delay.h>

#include "communicator.h"
#endif

namespace {

using namespace lockstep;

#ifdef LOCKSTEP_HAVE_CUDA
using gpu::check;

constexpr std::chrono::milliseconds kHeldUp{500};

// What is put on `later` after this call runs after what `earlier` has been given.
void order(RankContext& context, const Stream& earlier, const Stream& later, const Moment& moment) {
  check(cudaEventRecord(moment, earlier), "cudaEventRecord");
  check(cudaStreamWaitEvent(later, moment, 0), "cudaStreamWaitEvent");
  context.told().tell(trace::StreamUse{"record", earlier.number(), 0, moment.number()});
  context.told().tell(trace::StreamUse{"wait", later.number(), 0, moment.number()});
}

// CUDA loads a kernel when it is first launched, and may wait for the whole device to do so: for
// the delay too, and then no stream would be late. So each kernel runs once before. Leaves the
// gradients as they are.
void warm_up(const gpu::Tensors& gradients, const Floats& room, const Stream& stream) {
  gpu::delay(std::chrono::milliseconds(1), stream);
  gpu::flatten_and_scale(gradients, room.data(), 1, stream);
  gpu::unflatten(room.data(), gradients, stream);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

// The mean of the ranks' gradients, as DDP makes it: copied into a bucket and divided by the number
// of ranks on backward's stream, summed on NCCL's stream, and copied back.
void reduce(RankContext& context, const Fault& fault) {
  use_own_gpu(context);
  const Stream compute(1), of_nccl(2);
  const Moment filled, reduced;
  const auto ranks = static_cast<float>(context.world_size());
  const Floats weight(1000, ranks * static_cast<float>(context.rank() + 1));
  const Floats bias(3, ranks * static_cast<float>(context.rank() + 1));
  const gpu::Tensors gradients{{weight.data(), bias.data()}, {weight.count(), bias.count()}};
  const Floats bucket(1003, 0), mean(1003, 0);
  // Declared after the buffers, so that it is destroyed first: freeing them waits for its kernels.
  Communicator world(context, "world", fault("near-miss-same-stream") ? compute : of_nccl);
  warm_up(gradients, mean, compute);
  world.wait(world.all_reduce(bucket, mean));  // the first one also connects: now it is quick
  auto& told = context.told();

  gpu::delay(kHeldUp, compute);
  gpu::flatten_and_scale(gradients, bucket.data(), 1 / ranks, compute);
  told.tell(trace::StreamUse{"write", compute.number(), bucket.number(), 0});
  if (fault("wrong-stream")) {
    // The sum begins when its own stream is free, whether or not the bucket is full.
  } else if (fault("near-miss-same-stream")) {
    // Near miss: all on one stream, which does one thing after another.
  } else if (fault("near-miss-host-waits")) {
    // Near miss: no event, and this process goes on when the bucket is full.
    check(cudaStreamSynchronize(compute), "cudaStreamSynchronize");
    told.tell(trace::StreamUse{"synchronize", compute.number(), 0, 0});
  } else {
    order(context, compute, of_nccl, filled);
  }
  const auto number = world.all_reduce(bucket, mean);
  order(context, world.stream(), compute, reduced);
  gpu::unflatten(mean.data(), gradients, compute);
  told.tell(trace::StreamUse{"read", compute.number(), mean.number(), 0});

  world.wait(number);
  const float right = ranks * (ranks + 1) / 2;
  for (const auto* gradient : {&weight, &bias})
    add_figure(context, "off", std::abs(gradient->worst(right) - right));
}
#else
void reduce(RankContext&, const Fault&) {
  built_without_cuda();
}
#endif

// Each rank divides by W before the sum: that rounds where W is no power of two.
Measured off(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "off"), .tolerance = 0.001};
}

}  // namespace

Part streams_part() {
  return {.name = "streams",
          .run = reduce,
          .broken = {{.slug = "wrong-stream",
                      .what = "a bucket is reduced on a stream that does not wait for it",
                      .oracle = {"gradients, off the mean of all ranks", off},
                      .min_world_size = 1}},
          .near_misses = {{.name = "near-miss-same-stream",
                           .slug = "wrong-stream",
                           .naive_check = "a bucket is reduced with no event between"},
                          {.name = "near-miss-host-waits",
                           .slug = "wrong-stream",
                           .naive_check = "two streams use a bucket, with no event between"}},
          .participants = Participants::strangers};
}
