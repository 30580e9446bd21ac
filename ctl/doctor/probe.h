// SPDX-License-Identifier: Apache-2.0
// Asks a question that may never be answered (of a name server, a file server, a broken adapter).
// It is asked in a process of its own, which is left behind if it hangs in the kernel.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/unique_fd.h"

namespace ddprun::doctor {

class Probe {
 public:
  using Fields = std::vector<std::string>;

  // Starts to ask. `question` runs in a fork of this process, which must have one thread. Its
  // result, without NUL, is the answer. Throws as throw_system_error.
  explicit Probe(const std::function<Fields()>& question);
  ~Probe();  // sends SIGKILL if there is no answer yet; never waits
  Probe(Probe&& other) noexcept;
  Probe& operator=(Probe&&) = delete;

  // Returns the answer. nullopt: none came in time, `question` threw, or its process died. May be
  // called once.
  std::optional<Fields> answer(Deadline deadline);

 private:
  pid_t pid_ = -1;
  UniqueFd answer_;
};

}  // namespace ddprun::doctor
