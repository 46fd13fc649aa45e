// A small data-parallel job, simulated: it computes with vectors of a few numbers and records what a real one
// records. A test changes one thing that the job does, never what it records about it.
#pragma once

#include <lockstep/trace/reader.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::simulated {

using Ids = std::vector<std::int64_t>;
using Values = std::vector<double>;

// Of a trace's times.
constexpr std::int64_t kMillisecond = 1'000'000, kSecond = 1'000 * kMillisecond;

// Norm, hash and projections of a tensor, as the recorder makes them.
trace::Summary summarize(const Values& values);

// A gradient, or initial parameters, that only these numbers decide: two tensors, of 6 and 3 values.
std::vector<Values> draw_values(std::uint64_t seed, std::int64_t a, std::int64_t b);
std::vector<trace::Summary> summarize(const std::vector<Values>& tensors);

// The steps and events of kind T of one rank, or of all, to be changed.
template <class T>
std::vector<std::pair<std::int64_t, T&>> each(trace::ParticipantTrace& rank) {
  std::vector<std::pair<std::int64_t, T&>> all;
  for (auto& event : rank.events)
    if (auto* payload = event.change<T>()) all.emplace_back(event.step, *payload);
  return all;
}
template <class T>
std::vector<std::pair<std::int64_t, T&>> each(trace::Trace& trace) {
  std::vector<std::pair<std::int64_t, T&>> all;
  for (auto& rank : trace.ranks)
    for (const auto& one : each<T>(rank)) all.push_back(one);
  return all;
}

// Adds an event to one rank's trace, at a step. A collective has been left by then, but for one with left_ns 0.
void record(trace::ParticipantTrace& rank, std::int64_t step, trace::SharedPayload payload,
            std::int64_t left_ns = 1);

// A call that every rank has come through: of sum, where it reduces.
trace::Collective call(std::int64_t sequence, const std::string& group, const std::string& op,
                       std::int64_t root, std::int64_t elements);

// Dataset::ids_in_order where ids are positions.
std::uint64_t hash_of_positions(std::int64_t samples);

// Empty traces of all ranks.
trace::Trace empty_trace(int world_size, const std::string& kind = "process");

// What Python's DistributedSampler deals: shuffled by epoch, padded or (drop_last) cut after permuting.
struct Deal {
  std::int64_t samples = 101;
  int world_size = 2;
  bool shuffle = true;
  bool drop_last = false;
};
Ids permutation(std::int64_t samples, std::int64_t epoch);
Ids deal(const Deal& how, int rank, std::int64_t epoch);

struct Job {
  enum class Tell { before_pass, after_begin, after_first_batch, at_end };

  int world_size = 2;
  std::int64_t samples = 101;  // a prime
  std::int64_t batch = 4;
  int passes = 3;
  std::int64_t most_batches = 1'000'000;  // of a pass

  // Gradients.
  bool zero_gradients = true;
  bool reduce = true;
  double reduced_times = 1;         // what the mean over the ranks is multiplied with
  double loss_times = 1;            // what the loss is multiplied with before backward
  int backwards = 1;                // of equal parts, added up, for one update
  bool numbers_passes = true;       // else each is 0, as of a stream
  bool average_parameters = false;  // after each update
  int recorded_steps = 4;
  int recorded_losses = 1'000'000;  // in so many steps

  // Replicas.
  bool equal_start = true;
  bool has_engine = true;
  bool declares_mean = true;
  std::vector<int> odd_shape_on;
  int layers = 1;  // each with a weight and a bias

  // The schedule, as long as the run, keeps the learning rate.
  std::function<double(int rank)> lr = [](int) { return 0.1; };
  double reference_lr = 0.1 / world_size;  // declared, of so many ranks:
  int reference_world_size = 1;

  // Data.
  std::function<Ids(int rank, int pass)> order;  // default: as deal()
  std::function<trace::Dataset(int rank)> dataset;
  std::function<std::optional<std::int64_t>(int rank, int pass)>
      told;  // default: the pass's number
  Tell tell = Tell::before_pass;

  // Evaluation after each training pass.
  std::function<Ids(int rank, int pass)> evaluation_order;     // default: strided, unpadded
  std::function<double(int rank, int pass)> evaluation_count;  // default: all samples
  std::int64_t evaluation_samples = 0;                         // 0: as many as to train on

  // Also what few tests need: places, random numbers, zero_grad, forward, arrivals and the engine's all-reduces.
  bool every_event = false;

  explicit Job(int ranks) : world_size(ranks) {}
  trace::Trace run() const;
};

}  // namespace lockstep::simulated
