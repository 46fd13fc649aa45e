// What one record costs the program that is recorded, growing the file included.
//
//   trace_write [--benchmark_out=FILE]
//
// Iterations are fixed: a trace of millions of records would measure the disk.
#include <benchmark/benchmark.h>
#include <lockstep/base/file.h>
#include <lockstep/trace/writer.h>

namespace {

using namespace lockstep;

constexpr std::int64_t kIterations = 100'000;  // some 15 MB of collectives

void collective_enter_and_leave(benchmark::State& state) {
  const TemporaryFolder folder("lockstep-bench");
  trace::Writer writer(folder.path(), {});
  trace::Collective collective{.group = "default_pg",
                               .op = "allreduce",
                               .reduce_op = "sum",
                               .dtype = "float32",
                               .sizes = {203'530}};
  for (auto _ : state) {
    ++collective.sequence;
    writer.leave(writer.enter(collective), false);
  }
}
BENCHMARK(collective_enter_and_leave)->Iterations(kIterations)->Repetitions(9);

void samples(benchmark::State& state) {
  const TemporaryFolder folder("lockstep-bench");
  trace::Writer writer(folder.path(), {});
  const trace::Samples batch{"train",
                             std::vector<std::int64_t>(static_cast<std::size_t>(state.range(0)))};
  for (auto _ : state) writer.record(batch);
}
BENCHMARK(samples)->Arg(32)->Arg(64)->Iterations(kIterations)->Repetitions(9);

}  // namespace

BENCHMARK_MAIN();
