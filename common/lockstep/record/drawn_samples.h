// Which samples were drawn in which pass, of what samplers and data sets tell.
#pragma once

#include <lockstep/observe/observer.h>
#include <lockstep/observe/pass_count.h>
#include <lockstep/record/probes.h>
#include <lockstep/trace/event.h>
#include <lockstep/trace/writer.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::record {

// A batch is drawn where the program tells what it fetches. Else it is the next one that a sampler has dealt, and it is
// drawn when the program goes on to use it: a forward, a loss or a backward says so.
class DrawnSamples {
 public:
  struct Batch {
    std::vector<std::int64_t> ids;
    trace::Contents contents;
    trace::Dataset dataset;
  };
  // Called before a batch is told as drawn, and before one that a sampler has dealt for training.
  struct Before {
    std::function<void(bool training)> batch;
    std::function<void()> dealt_for_training;
  };

  DrawnSamples(trace::Writer& writer, Probes& probes, Before before)
      : writer_(writer), probes_(probes), before_(std::move(before)) {}

  // ---- the sampler ----
  void pass_begins(std::int64_t epoch, std::int64_t dataset_size, std::uint64_t ids,
                   std::uint64_t content);
  void dealt(const std::vector<std::int64_t>& ids);
  void dealt(Batch batch);
  void pass_dealt();

  // ---- the program ----
  void fetch(const Fetch& fetch);
  void draw_dealt(bool training);
  // A forward of the model begins, here and in this mode.
  void forward_begins(bool in_training_mode);
  void looked() { drawn_ = false; }  // a forward without gradients ended
  void loss();
  void backward();
  void draw_backed();  // an update follows the backwards
  void step_ended();

  void pass_over();
  // Where all of it was drawn; a pass that was broken off has no end.
  void end_pass();
  void end_pass_if_done();

 private:
  // It begins in the trace with its first batch, when its phase is known, and ends when all that was dealt has been drawn.
  struct Pass {
    std::int64_t epoch = 0;
    trace::Dataset dataset;
    std::string phase;  // empty: not begun
    std::int64_t batches = 0;
    PassCount count;
    bool over = false;  // pass_over() was called
  };

  void draw(const std::string& phase, const std::vector<std::int64_t>& ids);
  void look_at_undecided();
  void open_pass(const std::string& phase);
  void tell_other_set(trace::Dataset dataset);

  trace::Writer& writer_;
  Probes& probes_;
  Before before_;
  std::optional<Pass> pass_;
  std::optional<Pass> around_;  // a train pass under way, inside of which pass_ evaluates
  std::deque<Batch> dealt_;     // and not drawn
  std::size_t backed_ = 0;      // the first of dealt_ that saw a backward, and no update yet
  bool undecided_ = false;      // the one behind them went forward; does a backward follow?
  bool drawn_ = false;          // a batch to train on, since the last update
  bool awaits_backward_ = false;
  bool fetches_ = false;              // the program tells what it takes out of its data
  std::set<std::string> known_sets_;  // phases whose data set was told
  std::set<std::tuple<std::int64_t, std::uint64_t, std::uint64_t>> other_sets_;  // that were told
};

}  // namespace lockstep::record
