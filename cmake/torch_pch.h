// What is precompiled for every file that includes torch: LibTorch's headers and, with clang, functions that clang would
// instantiate in every file again. LibTorch's modules, optimizers and types inherit virtual functions of templates. Clang
// precompiles such a function only if it is called by its qualified name; it instantiates the others at the end of every
// file. An empty file takes 3.2 s of processor time without the calls below, and 0.9 s with them. They never run.
// A line that does not compile with a new LibTorch can be deleted: files then compile more slowly, and nothing else changes.
// To see what clang instantiates in a file, add -ftime-trace to its command in the compile_commands.json of a build with
// LOCKSTEP_UNITY=OFF.
#pragma once

#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#if defined(__clang__)
namespace lockstep::precompiled {

template <class... T>
void types(const T&... of) {
  (void(of.T::equals(of)), ...);
  (void(of.T::containedTypes()), ...);
  (void(of.T::hasFreeVariables()), ...);
}

template <class... T>
void attributes(const T&... of) {
  (void(of.T::clone()), ...);
}

template <class... T>
void modules(T&... of) {
  (void(of.torch::nn::template Cloneable<T>::clone()), ...);
  (void(of = *std::dynamic_pointer_cast<T>(std::shared_ptr<torch::nn::Module>())), ...);
}

template <class... T>
void convolutions(T&... of) {
  (of.T::pretty_print(std::cout), ...);
  (of.T::reset(), ...);
}

template <size_t Dimensions, class T>
void transposed(T& of) {
  convolutions(of);
  of.torch::nn::template ConvNdImpl<Dimensions, T>::pretty_print(std::cout);
}

template <class Base, class... T>
void copies(const T&... of) {
  (void(std::unique_ptr<Base>(std::make_unique<T>(of))), ...);
}

inline void types_and_attributes() {
  using namespace torch::jit;
  (void)&types<c10::ListType, c10::FutureType, c10::AwaitType, c10::RRefType>;
  (void)&attributes<VectorAttributeValue<double, AttributeKind::fs>,
                    VectorAttributeValue<int64_t, AttributeKind::is>,
                    VectorAttributeValue<std::string, AttributeKind::ss>,
                    VectorAttributeValue<at::Tensor, AttributeKind::ts>,
                    VectorAttributeValue<c10::TypePtr, AttributeKind::tys>,
                    ScalarAttributeValue<c10::complex<double>, AttributeKind::c>,
                    VectorAttributeValue<c10::complex<double>, AttributeKind::cs>>;
}

inline void all_modules() {
  using namespace torch::nn;
  (void)&modules<ModuleDictImpl, ParameterDictImpl, SequentialImpl, LinearImpl, UnflattenImpl,
                 BilinearImpl, SoftmaxImpl, SoftminImpl, LogSoftmaxImpl, ThresholdImpl,
                 MultiheadAttentionImpl, AdaptiveLogSoftmaxWithLossImpl, EmbeddingImpl,
                 EmbeddingBagImpl, FoldImpl, UnfoldImpl, LayerNormImpl, LocalResponseNormImpl,
                 CrossMapLRN2dImpl, GroupNormImpl, FractionalMaxPool2dImpl, FractionalMaxPool3dImpl,
                 RNNImpl, LSTMImpl, GRUImpl, RNNCellImpl, LSTMCellImpl, GRUCellImpl,
                 TransformerEncoderLayerImpl, TransformerDecoderLayerImpl, TransformerEncoderImpl,
                 TransformerDecoderImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl,
                 ConvTranspose2dImpl, ConvTranspose3dImpl>;
  (void)&convolutions<Conv1dImpl, Conv2dImpl, Conv3dImpl>;
  (void)&transposed<1, ConvTranspose1dImpl>;
  (void)&transposed<2, ConvTranspose2dImpl>;
  (void)&transposed<3, ConvTranspose3dImpl>;
}

inline void optimizers() {
  using namespace torch::optim;
  (void)&copies<OptimizerOptions, AdagradOptions, AdamOptions, AdamWOptions, LBFGSOptions,
                RMSpropOptions, SGDOptions>;
  (void)&copies<OptimizerParamState, AdagradParamState, AdamParamState, AdamWParamState,
                LBFGSParamState, RMSpropParamState, SGDParamState>;
}

inline void datasets(torch::data::datasets::MNIST& mnist,
                     torch::data::datasets::TensorDataset& tensors) {
  (void)mnist.Dataset::get_batch({});
  (void)tensors.Dataset::get_batch({});
}

}  // namespace lockstep::precompiled
#endif
