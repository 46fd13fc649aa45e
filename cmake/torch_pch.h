// What is precompiled for every file that includes torch: its headers and, with clang, what each file would else
// instantiate again. LibTorch's modules, optimizers and types inherit virtual functions of templates. Clang precompiles
// such a function only where it is called by its full name; all others it instantiates at the end of every file. An
// empty file takes 3.2 s of processor time without the calls below and 0.9 s with them. Nothing ever runs them.
// If a line does not compile with a new LibTorch, delete it: a missing line costs time and nothing else.
// To see what is instantiated in a file: its command of compile_commands.json with -ftime-trace.
#pragma once

#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#if defined(__clang__)
namespace lockstep::precompiled {

template <class T>
void type(const T& of) {
  (void)of.T::equals(of);
  (void)of.T::containedTypes();
  (void)of.T::hasFreeVariables();
}
template <class T>
void attribute(const T& of) {
  (void)of.T::clone();
}
template <class T>
void module(T& of) {
  (void)of.torch::nn::template Cloneable<T>::clone();
  of = *std::dynamic_pointer_cast<T>(std::shared_ptr<torch::nn::Module>());
}
template <class T>
void convolution(T& of) {
  of.T::pretty_print(std::cout);
  of.T::reset();
}
template <size_t Dimensions, class T>
void transposed(T& of) {
  convolution(of);
  of.torch::nn::template ConvNdImpl<Dimensions, T>::pretty_print(std::cout);
}
template <class Base, class Derived>
std::unique_ptr<Base> copied(const Derived& of) {
  return std::make_unique<Derived>(of);
}
template <class... Options>
void options() {
  (void(&copied<torch::optim::OptimizerOptions, Options>), ...);
}
template <class... States>
void states() {
  (void(&copied<torch::optim::OptimizerParamState, States>), ...);
}
template <class... Types>
void types() {
  (void(&type<Types>), ...);
}
template <class... Attributes>
void attributes() {
  (void(&attribute<Attributes>), ...);
}
template <class... Modules>
void modules() {
  (void(&module<Modules>), ...);
}

inline void types_and_attributes() {
  using namespace torch::jit;
  types<c10::ListType, c10::FutureType, c10::AwaitType, c10::RRefType>();
  attributes<VectorAttributeValue<double, AttributeKind::fs>,
             VectorAttributeValue<int64_t, AttributeKind::is>,
             VectorAttributeValue<std::string, AttributeKind::ss>,
             VectorAttributeValue<at::Tensor, AttributeKind::ts>,
             VectorAttributeValue<c10::TypePtr, AttributeKind::tys>,
             ScalarAttributeValue<c10::complex<double>, AttributeKind::c>,
             VectorAttributeValue<c10::complex<double>, AttributeKind::cs>>();
}

inline void all_modules() {
  using namespace torch::nn;
  modules<ModuleDictImpl, ParameterDictImpl, SequentialImpl, LinearImpl, UnflattenImpl,
          BilinearImpl, SoftmaxImpl, SoftminImpl, LogSoftmaxImpl, ThresholdImpl,
          MultiheadAttentionImpl, AdaptiveLogSoftmaxWithLossImpl, EmbeddingImpl, EmbeddingBagImpl,
          FoldImpl, UnfoldImpl, LayerNormImpl, LocalResponseNormImpl, CrossMapLRN2dImpl,
          GroupNormImpl, FractionalMaxPool2dImpl, FractionalMaxPool3dImpl, RNNImpl, LSTMImpl,
          GRUImpl, RNNCellImpl, LSTMCellImpl, GRUCellImpl, TransformerEncoderLayerImpl,
          TransformerDecoderLayerImpl, TransformerEncoderImpl, TransformerDecoderImpl, Conv1dImpl,
          Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl, ConvTranspose2dImpl, ConvTranspose3dImpl>();
  (void)&convolution<Conv1dImpl>;
  (void)&convolution<Conv2dImpl>;
  (void)&convolution<Conv3dImpl>;
  (void)&transposed<1, ConvTranspose1dImpl>;
  (void)&transposed<2, ConvTranspose2dImpl>;
  (void)&transposed<3, ConvTranspose3dImpl>;
}

inline void optimizers() {
  using namespace torch::optim;
  options<AdagradOptions, AdamOptions, AdamWOptions, LBFGSOptions, RMSpropOptions, SGDOptions>();
  states<AdagradParamState, AdamParamState, AdamWParamState, LBFGSParamState, RMSpropParamState,
         SGDParamState>();
}

inline void datasets(torch::data::datasets::MNIST& mnist,
                     torch::data::datasets::TensorDataset& tensors) {
  (void)mnist.Dataset::get_batch({});
  (void)tensors.Dataset::get_batch({});
}

}  // namespace lockstep::precompiled
#endif
