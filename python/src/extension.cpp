// lockstep_torch._extension: the recorder of common/lockstep/record and the detectors, for Python.
#include <lockstep/base/clock.h>
#include <lockstep/base/say.h>
#include <lockstep/compare/compare.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/diagnose/nearest.h>
#include <lockstep/diagnose/text.h>
#include <lockstep/record/content.h>
#include <lockstep/record/failed_collective.h>
#include <lockstep/record/fed_inputs.h>
#include <lockstep/record/observed_backend.h>
#include <lockstep/record/readable.h>
#include <lockstep/record/recorder.h>
#include <lockstep/record/writer_in.h>
#include <lockstep/report/job.h>
#include <lockstep/report/json.h>
#include <lockstep/report/places.h>
#include <lockstep/trace/attempts.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "stacks.h"
#include "stand_ins.h"
#include "values.h"

namespace py = pybind11;
using namespace lockstep;
using lockstep::python::Group;
using lockstep::python::NamedTensors;

namespace {

struct Model {
  std::shared_ptr<torch::nn::Module> module;
};
struct Optimizer {
  std::shared_ptr<torch::optim::Optimizer> optimizer;
};

// A rank of the job that is recorded. Its calls are the recorder's (lockstep/record/recorder.h) and its probes'.
class Rank {
 public:
  Rank(const std::filesystem::path& folder, int rank, int world_size)
      : folder_(record::folder_in(folder)),
        writer_(record::writer_in(folder, {.rank = rank, .world_size = world_size})),
        recorder_(std::make_shared<record::Recorder>(
            writer_, record::ProbeOptions{.also = record::probe_stretch_from_environment(),
                                          .hooks = false})) {
    record::record_placement(*writer_);
  }
  // When the interpreter ends. It closes the trace itself: torch may never free a group, which holds the writer.
  ~Rank() {
    try {
      end(false);
    } catch (const std::exception&) {  // the program ends, and its devices may have ended before it
    }
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  BackendPtr observe(BackendPtr backend) {
    return record::observe(std::move(backend), writer_, recorder_);
  }
  record::Recorder& recorder() { return *recorder_; }
  void tell(const trace::Payload& event) { writer_->record(event); }
  std::int64_t step() const { return writer_->step(); }
  // An exception that nobody caught ends this rank. Returns whether it is the
  // program's own, and not that of a collective that failed.
  bool raised() {
    raised_ = true;
    const bool of_collective = record::last_failed_collective().has_value();
    writer_->record(trace::RankEnd{.rank = writer_->participant().rank,
                                   .how = "raised",
                                   .exit_code = 1,
                                   .collective = of_collective,
                                   .ended_ns = monotonic_ns()});
    return !of_collective;
  }
  // Also where a group still holds the recorder. A rank that raised must not wait for its tensors, which may wait for a
  // collective that never ends.
  void end(bool goes_on) {
    recorder_->ends();
    if (!raised_) recorder_->told([](record::Probes& probes) { probes.ends(); });
    writer_->end(goes_on);
  }
  // Of this attempt.
  const std::filesystem::path& folder() const { return folder_; }
  bool probes() const { return step() < 0 || recorder_->probes().looks_at_values(); }

 private:
  std::filesystem::path folder_;
  std::shared_ptr<trace::Writer> writer_;
  std::shared_ptr<record::Recorder> recorder_;
  bool raised_ = false;
};

// Calls that are the recorder's own, or its probes', with the same arguments.
template <class... Arguments>
auto of_recorder(void (record::Recorder::*call)(Arguments...)) {
  return [call](Rank& rank, Arguments... arguments) { (rank.recorder().*call)(arguments...); };
}

template <class... Arguments>
auto of_probes(void (record::Probes::*call)(Arguments...)) {
  return [call](Rank& rank, Arguments... arguments) {
    rank.recorder().told([&](record::Probes& probes) { (probes.*call)(arguments...); });
  };
}

// A call that tells the event with these fields.
template <class Event, class... Fields>
auto telling() {
  return [](Rank& rank, const Fields&... fields) { rank.tell(Event{fields...}); };
}

struct Diagnosed {
  explicit Diagnosed(const std::filesystem::path& folder)
      : trace(trace::read_job(folder)), diagnosis(diagnose::diagnose(trace)) {
    left_out = report::add_places(trace::attempt_folders(folder).back(), trace, diagnosis);
  }
  trace::Trace trace;
  diagnose::Diagnosis diagnosis;
  std::vector<std::string> left_out;  // of the lines of the program, and why
};

std::unique_ptr<const Diagnosed> diagnosed(const std::filesystem::path& folder) {
  const py::gil_scoped_release unlocked;
  return std::make_unique<const Diagnosed>(folder);
}

// A trace's own text may hold any bytes.
py::object as_text(const std::string& bytes) {
  return py::bytes(bytes).attr("decode")("utf-8", "replace");
}

py::list as_texts(const std::vector<std::string>& all) {
  py::list texts;
  for (const auto& bytes : all) texts.append(as_text(bytes));
  return texts;
}

py::dict diagnosis_of(const std::filesystem::path& folder) {
  const auto job = diagnosed(folder);
  const auto& diagnosis = job->diagnosis;
  std::error_code none;
  py::dict states;
  for (const auto& row : diagnosis.rows)
    states[py::str(row.slug)] = diagnose::to_string(row.verdict.state);
  py::dict result;
  result["world_size"] = job->trace.world_size;
  result["recorded_ranks"] = job->trace.ranks.size();
  result["findings"] =
      py::module_::import("json").attr("loads")(report::findings_json(diagnosis.findings));
  result["ledger"] =
      py::module_::import("json").attr("loads")(diagnose::ledger_json(diagnosis.ledger));
  result["detectors"] = states;
  result["text"] =
      as_text(diagnose::to_text(diagnosis, std::filesystem::current_path(none).string()));
  result["left_out"] = as_texts(job->left_out);
  result["incomplete"] = as_texts(diagnosis.incomplete);
  return result;
}

py::dict comparison_of(const std::filesystem::path& a, const std::filesystem::path& b,
                       const std::string& lockstep) {
  const auto compared = [&] {
    const py::gil_scoped_release unlocked;
    return compare::compare_folders(a, b);
  }();
  py::dict result;
  result["answer"] = compare::to_string(compared.answer);
  result["text"] = as_text(compare::to_text(compared, a.string(), b.string(), lockstep));
  result["json"] = compare::to_json(compared, a.string(), b.string());
  return result;
}

// What a page shows of it.
std::pair<std::string, py::list> page_of(const std::filesystem::path& folder,
                                         const std::filesystem::path& pages) {
  const auto job = diagnosed(folder);
  return {report::job_json(job->trace, job->diagnosis, report::missing_ranks(job->trace),
                           report::all_pages(pages)),
          as_texts(job->left_out)};
}

// How ranks ended that left no word of it, by which signal, and when, as launcher.trace beside their traces.
void record_ends(const std::filesystem::path& folder,
                 const std::map<int, std::tuple<std::string, std::int64_t, std::int64_t>>& ends) {
  if (std::filesystem::exists(trace::launcher_file(folder))) return;
  trace::Writer writer(folder, {.world_size = trace::read(folder).world_size, .kind = "launcher"});
  for (const auto& [rank, end] : ends) {
    const auto& [how, signal, ended_ns] = end;
    writer.record(trace::RankEnd{.rank = rank, .how = how, .signal = signal, .ended_ns = ended_ns});
  }
}

}  // namespace

PYBIND11_MODULE(_extension, module) {
  // The text of an error may name a file, whose name is any bytes.
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetObject(PyExc_RuntimeError, as_text(error.what()).ptr());
    }
  });
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  module.def("diagnose", diagnosis_of, "What the detectors find in a folder of traces.");

  module.def(
      "nearest_to",
      [](const std::string& generic) {
        std::vector<std::pair<std::string, std::string>> nearest;
        for (const auto& one : diagnose::nearest_to(generic))
          nearest.emplace_back(one.pitfall, one.sign);
        return nearest;
      },
      "The pitfalls that are nearest to a generic finding, each with what would show.");

  module.def("compare", comparison_of,
             "Until where two folders of traces agree: the answer, and what differs first as text "
             "and as JSON. The text says to call `lockstep`, a command.");

  module.def("page", page_of,
             "reports/schema/job.schema.json as text, and what was left out of the lines. `pages` "
             "has the folder lessons.");

  module.def("is_readable", record::is_readable, "Whether a tensor's numbers can be read.");
  module.def(
      "hash_samples",
      [](const std::vector<at::Tensor>& tensors) { return record::hash_samples(tensors, true); },
      Unlocked());
  module.def(
      "some_rows",
      [](const std::vector<at::Tensor>& tensors) { return record::some_rows(tensors, true); },
      Unlocked());
  module.def("say", say, Unlocked(), "Whole lines, on the program's standard error.");
  module.def("write_stacks_into", python::write_stacks_into,
             "The stack of a thread that gets SIGINT or SIGTERM, and of all at SIGRTMIN.");
  module.def("leave_signal", python::leave_signal);
  module.def("record_ends", record_ends,
             "By rank: \"stopped\" by somebody or \"signalled\", the signal or 0, and when (ns).");

  py::class_<Model>(module, "Model")
      .def(py::init([](const NamedTensors& parameters, const NamedTensors& buffers) {
        return Model{python::stand_in_for(parameters, buffers)};
      }))
      .def("is_of",
           [](Model& model, const std::vector<at::Tensor>& parameters) {
             const auto own = model.module->parameters();
             return std::equal(own.begin(), own.end(), parameters.begin(), parameters.end(),
                               [](const auto& a, const auto& b) { return a.is_same(b); });
           })
      .def("train", [](Model& model, bool on) { model.module->train(on); })
      .def(
          "set_modes",
          [](Model& model, const std::map<std::string, bool>& training) {
            for (const auto& item : model.module->named_modules())
              if (const auto found = training.find(item.key()); found != training.end())
                item.value()->train(found->second);
          },
          "Of submodules by their names.");

  py::class_<Optimizer>(module, "Optimizer")
      .def(py::init(
          [](const std::vector<Group>& groups) { return Optimizer{python::stand_in_for(groups)}; }))
      .def("set_rates", [](Optimizer& of, const std::vector<double>& rates) {
        python::set_rates(*of.optimizer, rates);
      });

  py::class_<Rank>(module, "Rank")
      .def(py::init<std::filesystem::path, int, int>())
      .def("step", &Rank::step)
      .def("folder", &Rank::folder)
      .def("raised", &Rank::raised, Unlocked())
      .def("recording_ended",
           [](Rank& rank, const std::string& of) { rank.tell(trace::RecordingEnd{of}); })
      .def("end", &Rank::end, Unlocked(), "The recording. `goes_on`: the program does.")
      .def("probes", &Rank::probes, "Whether this step's values are recorded.")
      .def("observe", &Rank::observe)
      .def("group", of_recorder(&record::Recorder::group), Unlocked())
      .def("sharded", of_recorder(&record::Recorder::sharded), Unlocked())
      .def("engine",
           [](Rank& rank, const std::string& kind) {
             rank.tell(trace::Engine{.kind = kind, .parameters = 0});
           })
      .def(
          "wrapping", [](Rank& rank, Model& model) { rank.recorder().wrapping(*model.module); },
          Unlocked())
      .def(
          "wrapped",
          [](Rank& rank, Model& model, const std::string& engine) {
            rank.recorder().wrapped(*model.module, engine);
          },
          Unlocked())
      .def(
          "forward_begins",
          [](Rank& rank, Model& model, const std::vector<at::Tensor>& inputs) {
            rank.recorder().forward_begins(*model.module, inputs);
          },
          Unlocked())
      .def(
          "forward_ended",
          [](Rank& rank, Model& model) { rank.recorder().forward_ended(*model.module); },
          Unlocked())
      .def("sync_gradients", of_recorder(&record::Recorder::sync_gradients), Unlocked())
      .def(
          "loss",
          [](Rank& rank, const at::Tensor& per_sample) {
            rank.recorder().loss(per_sample, {}, {});
          },
          Unlocked())
      .def("backward", of_recorder(&record::Recorder::backward), Unlocked())
      .def(
          "optimizer_made",
          [](Rank& rank, Optimizer& of) { rank.recorder().optimizer_made(*of.optimizer); },
          Unlocked())
      .def(
          "has_optimizer",
          [](Rank& rank, const std::vector<at::Tensor>& parameters) {
            return rank.recorder().has_optimizer(parameters);
          },
          Unlocked(), "Whether the model or an optimizer that was told has one of them.")
      .def(
          "attached", [](Rank& rank) { return rank.recorder().attached(); }, Unlocked())
      .def("zero_grad", of_recorder(&record::Recorder::zero_grad), Unlocked())
      .def(
          "update_begins",
          [](Rank& rank, Optimizer& of) { rank.recorder().update_begins(*of.optimizer); },
          Unlocked())
      .def("looks_at_generators",
           [](Rank& rank) { return rank.recorder().probes().looks_at_generators(); })
      .def("generators", of_probes(&record::Probes::generators), Unlocked())
      .def(
          "update_ended",
          [](Rank& rank, Optimizer& of) { rank.recorder().update_ended(*of.optimizer); },
          Unlocked())
      .def("inputs", of_recorder(&record::Recorder::inputs), Unlocked())
      .def(
          "evaluates", [](Rank& rank, Model& model) { rank.recorder().evaluates(*model.module); },
          Unlocked())
      .def("evaluates_statistics", of_probes(&record::Probes::evaluates), Unlocked())
      .def("forward", of_probes(&record::Probes::forward), Unlocked(),
           "Of a model that no engine has wrapped: `training`, its mode.")
      .def("outside", of_recorder(&record::Recorder::outside), Unlocked())
      .def("parameters_change", of_probes(&record::Probes::flush), Unlocked())
      .def("update_shadowed", of_recorder(&record::Recorder::update_shadowed), Unlocked())
      .def("clip", of_recorder(&record::Recorder::clip), Unlocked())
      .def("scaled_step", of_recorder(&record::Recorder::scaled_step), Unlocked())
      .def("schedule", of_recorder(&record::Recorder::schedule), Unlocked())
      .def("set_epoch", of_recorder(&record::Recorder::set_epoch), Unlocked())
      .def(
          "pass_begins",
          [](Rank& rank, std::int64_t epoch, std::int64_t size, std::uint64_t ids,
             std::uint64_t content) { rank.recorder().pass_begins(epoch, size, ids, content); },
          Unlocked())
      .def(
          "dealt",
          [](Rank& rank, const std::vector<std::int64_t>& ids,
             const std::vector<std::int64_t>& some, const std::vector<std::int64_t>& hashes,
             const std::tuple<std::int64_t, std::uint64_t, std::uint64_t>& dataset) {
            const auto& [size, set, content] = dataset;
            rank.recorder().dealt(ids, {some, hashes}, {"", size, size, set, set, content});
          },
          Unlocked())
      .def(
          "pass_dealt",
          [](Rank& rank) {
            rank.recorder().pass_dealt();
            rank.recorder().pass_over();
          },
          Unlocked())
      .def("looks_at_gradients",
           [](Rank& rank) { return rank.recorder().probes().looks_at_gradients(); })
      .def(
          "local_gradient",
          [](Rank& rank, std::uintptr_t parameter, const at::Tensor& gradient) {
            rank.recorder().probes().local_gradient(
                reinterpret_cast<const at::TensorImpl*>(parameter), gradient);
          },
          Unlocked(), "By the parameter's address: Tensor._cdata.")
      .def("let_go", of_recorder(&record::Recorder::let_go), Unlocked())
      .def("take_dealt", of_recorder(&record::Recorder::take_dealt), Unlocked())
      .def("saving", of_recorder(&record::Recorder::saving), Unlocked())
      .def("saved", of_recorder(&record::Recorder::saved), Unlocked())
      .def("loaded", of_recorder(&record::Recorder::loaded), Unlocked())
      .def("training_state",
           [](Rank& rank, const std::string& moment, const py::dict& parts) {
             const auto values = python::value_of(parts);
             const py::gil_scoped_release unlocked;
             rank.recorder().training_state(moment, values.as_dict());
           })
      .def(
          "settings",
          [](Rank& rank, const std::string& of, const std::map<std::string, std::string>& told) {
            trace::Settings settings;
            if (!trace::from_string(of, settings.of)) throw Error("there are no settings of " + of);
            for (const auto& [key, value] : told) {
              settings.keys.push_back(key);
              settings.values.push_back(value);
            }
            if (!told.empty()) rank.tell(settings);
          },
          Unlocked(), "Of something that trace::SettingsOf has, by their keys.")
      .def("evaluation_input", telling<trace::EvaluationInput, std::int64_t, std::uint64_t>(),
           Unlocked())
      .def("evaluation_rows", telling<trace::EvaluationRows, std::vector<std::int64_t>>(),
           Unlocked())
      .def("workers", telling<trace::Workers, std::int64_t>(), Unlocked())
      .def("schedule_twins", telling<trace::ScheduleTwins, std::string, std::int64_t>(), Unlocked())
      .def("own_tensors_loaded", telling<trace::OwnTensorsLoaded, std::string>(), Unlocked())
      .def("outside_in_training", telling<trace::OutsideInTraining, std::string>(), Unlocked())
      .def("checkpoint_without_gradient", telling<trace::CheckpointWithoutGradient>(), Unlocked())
      .def(
          "moving",
          [](Rank& rank,
             const std::vector<std::tuple<std::string, std::string, std::string>>& values) {
            trace::Moving moving;
            for (const auto& [name, first, now] : values)
              moving.values.push_back({name, first, now});
            rank.tell(moving);
          },
          Unlocked(), "Of each value its name, what it was before the first update, and now.")
      .def(
          "intent",
          [](Rank& rank, std::int64_t global_batch, const std::string& loss_reduction,
             double reference_lr, int reference_world_size) {
            rank.tell(trace::Intent{.global_batch = global_batch,
                                    .loss_reduction = loss_reduction,
                                    .reference_lr = reference_lr,
                                    .reference_world_size = reference_world_size});
          },
          Unlocked())
      .def("state_taken",
           telling<trace::StateTaken, std::string, std::int64_t, std::int64_t, std::string,
                   std::string>(),
           Unlocked())
      .def("metric", of_probes(&record::Probes::metric), Unlocked())
      .def("decision", of_probes(&record::Probes::decision), Unlocked())
      .def("random_numbers", of_recorder(&record::Recorder::random_numbers), Unlocked())
      .def("average", of_probes(&record::Probes::average), Unlocked())
      .def("async_result", of_probes(&record::Probes::async_result), Unlocked());
}
