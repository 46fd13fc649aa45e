// What the operations of a program that is proved (begin.h) go through first, those of its backwards, too. Operations
// inside of an operation do not: dropout is one, not what it is made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <set>
#include <string>

namespace lockstep::prove {

struct Operations {
  bool wide = true;  // 16 and 32 bits become 64
  // Dropout drops nothing, BatchNorm goes by its running statistics, and these places draw the same for each row.
  std::optional<std::set<std::string>> still = {};
  std::function<void()> before = {};
  // Random numbers were drawn at this place of the program. `known`: by an operation that can be made neutral.
  std::function<void(const std::string& site, bool known, const at::Tensor& numbers)> drawn = {};
  // What detach() is to give, of a tensor with a gradient; `own` is what it gave.
  std::function<at::Tensor(const at::Tensor& own)> detached = {};
  std::set<std::string> notes = {};  // what was made neutral
};

// Those of this thread, from now on. They are never let go.
void intercept(Operations& operations);

}  // namespace lockstep::prove
