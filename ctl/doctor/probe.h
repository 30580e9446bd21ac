// SPDX-License-Identifier: Apache-2.0
// A question that may never be answered (a name server, a file server, a sick adapter). A process
// of its own asks it: one that is stuck in the kernel can be left behind.
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

  // Begins to ask. `question` is called in a copy of this process, which must have one thread; what
  // it returns (no NUL inside) or throws is the answer. Throws as throw_system_error.
  explicit Probe(const std::function<Fields()>& question);
  ~Probe();  // SIGKILL, where it hasn't answered; never waits
  Probe(Probe&& other) noexcept;
  Probe& operator=(Probe&&) = delete;

  // nullopt: none by then, or it broke. Once.
  std::optional<Fields> answer(Deadline deadline);

 private:
  pid_t pid_ = -1;
  UniqueFd answer_;
};

}  // namespace ddprun::doctor
