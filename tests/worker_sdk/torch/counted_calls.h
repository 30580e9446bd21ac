// SPDX-License-Identifier: Apache-2.0
// Counts the operations of LibTorch that a piece of a program calls. On a GPU each one is a kernel,
// or a wait.
#pragma once

#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <string>

namespace ddprun::testing {

// Counts the calls of this thread while it lives, also those that operations make themselves.
class CountedCalls {
 public:
  CountedCalls() {
    counts.clear();
    const at::RecordFunctionCallback::StartCallback count = [](const at::RecordFunction& call) {
      ++counts[call.name()];
      return std::unique_ptr<at::ObserverContext>();
    };
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(count).scopes({at::RecordScope::FUNCTION}));
  }
  ~CountedCalls() { at::removeCallback(handle_); }
  CountedCalls(const CountedCalls&) = delete;
  CountedCalls& operator=(const CountedCalls&) = delete;

  int of(const std::string& name) const {
    const auto found = counts.find("aten::" + name);
    return found == counts.end() ? 0 : found->second;
  }

 private:
  static inline thread_local std::map<std::string, int> counts;
  at::CallbackHandle handle_;
};

}  // namespace ddprun::testing
