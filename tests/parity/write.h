// How a program gives Python its tensors.
#pragma once

#include <torch/torch.h>

#include <ostream>
#include <string>

namespace lockstep::parity {

// The values as they are.
inline void write(std::ostream& out, const at::Tensor& tensor) {
  const auto values = tensor.detach().contiguous();
  out.write(static_cast<const char*>(values.const_data_ptr()),
            static_cast<std::streamsize>(values.nbytes()));
}

// Behind a line "name bytes".
inline void write(std::ostream& out, const std::string& name, const at::Tensor& tensor) {
  out << name << ' ' << tensor.nbytes() << '\n';
  write(out, tensor);
}

}  // namespace lockstep::parity
