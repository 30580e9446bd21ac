// SPDX-License-Identifier: Apache-2.0
// Finds the tensors in whatever a module's forward returns.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <string_view>
#include <tuple>
#include <vector>

namespace ddprun {

// Specialise it for a type of your own that holds tensors:
//   static void collect(const MyOutput&, std::vector<at::Tensor>&);
template <typename T>
struct OutputTensors;

// Appends the tensors in `output`. It may be a tensor; optionals, pointers, pairs, tuples, ranges,
// maps and torch::OrderedDict of such, nested in any way; a type with OutputTensors. Other types
// have none.
template <typename T>
void collect_tensors(const T& output, std::vector<at::Tensor>& tensors) {
  if constexpr (requires { OutputTensors<T>::collect(output, tensors); }) {
    OutputTensors<T>::collect(output, tensors);
  } else if constexpr (std::convertible_to<const T&, const at::Tensor&>) {
    tensors.push_back(output);
  } else if constexpr (std::convertible_to<const T&, std::string_view>) {
    // A text is a range, but not of tensors.
  } else if constexpr (requires {
                         output.key();
                         output.value();
                       }) {
    collect_tensors(output.value(), tensors);
  } else if constexpr (requires {
                         static_cast<bool>(output);
                         *output;
                       }) {
    if (output) collect_tensors(*output, tensors);
  } else if constexpr (requires { output.begin() != output.end(); }) {
    for (const auto& each : output) collect_tensors(each, tensors);
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&](const auto&... parts) { (collect_tensors(parts, tensors), ...); }, output);
  }
}

}  // namespace ddprun
