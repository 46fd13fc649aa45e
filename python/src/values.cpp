#include "values.h"

#include <torch/csrc/autograd/python_variable.h>

namespace lockstep::python {
namespace py = pybind11;

ValueOf<at::Tensor> value_of(const py::handle& object) {
  using Value = ValueOf<at::Tensor>;
  if (THPVariable_Check(object.ptr())) {
    const auto& tensor = THPVariable_Unpack(object.ptr());
    return tensor.key_set().has(c10::DispatchKey::Python) ? Value() : Value(tensor);
  }
  if (py::isinstance<py::bool_>(object)) return object.cast<bool>();
  if (py::isinstance<py::float_>(object) || py::isinstance<py::int_>(object)) {
    const double number = PyFloat_AsDouble(object.ptr());
    PyErr_Clear();  // an int may be larger
    return number;
  }
  if (py::isinstance<py::str>(object)) return object.cast<std::string>();
  if (py::isinstance<py::list>(object) || py::isinstance<py::tuple>(object)) {
    Value::List items;
    for (const auto& item : object) items.push_back(value_of(item));
    return items;
  }
  Value::Dict entries;
  if (!py::isinstance<py::dict>(object)) return {};
  for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(object))
    entries[py::str(key).cast<std::string>()] = value_of(value);
  return entries;
}

}  // namespace lockstep::python
