#include <lockstep/diagnose/equations.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace lockstep::diagnose {
namespace {

constexpr std::array<EquationText, kEquations + 1> kTexts{{
    {"one-job", "each process joins the job once, and has a place of its own", "job", ""},
    {"equal-start", "replicas start from equal parameters", "model", "wrapping"},
    {"equal-settings", "settings of model, loss and optimizer are equal on all ranks", "model", ""},
    {"own-samples", "ranks draw different samples, and together each one once", "pass", "pass"},
    {"new-order", "a pass has another order than the pass before", "pass", "pass"},
    {"modes", "forwards are in the mode that they need, the same on all ranks", "step", ""},
    {"random-numbers", "random numbers differ where the data differ", "pass", ""},
    {"loss-weights", "the loss counts each sample alike", "step", "backward"},
    {"mean-gradient", "the gradient is the mean of the ranks' own, of this step", "step",
     "backward"},
    {"clipped-once", "clipping sees the mean gradient, once and unscaled", "step", "update"},
    {"rates", "learning rates move as they were made to", "step", "update"},
    {"all-moved", "equal gradients move equal parameters equally, and all of them", "step",
     "update"},
    {"equal-after", "replicas are equal after the update, or are made equal again", "step", ""},
    {"buffers", "buffers are equal where they are read", "evaluation", ""},
    {"joined-figures", "reported figures join what all ranks found, each sample once", "evaluation",
     ""},
    {"saved-is-held", "what is saved is held, and what goes on was saved", "checkpoint",
     "checkpoint"},
    {"same-calls", "ranks make the same calls in the same order", "collective", "collective"},
    {"none", "", "", ""},
}};

}  // namespace

const EquationText& text_of(Equation equation) {
  return kTexts.at(static_cast<std::size_t>(equation));
}

const EquationText* equation_called(const std::string& slug) {
  const auto found =
      std::ranges::find_if(kTexts, [&](const auto& text) { return text.slug == slug; });
  return found == kTexts.end() ? nullptr : &*found;
}

}  // namespace lockstep::diagnose
