// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/backend_choice.h"

namespace ddprun {

const char* to_string(BackendChoice choice) {
  switch (choice) {
    case BackendChoice::kAuto:
      return "auto";
    case BackendChoice::kHost:
      return "host";
    case BackendChoice::kNccl:
      return "nccl";
  }
  return "unknown";
}

std::optional<BackendChoice> parse_backend_choice(std::string_view text) {
  for (const auto choice : {BackendChoice::kAuto, BackendChoice::kHost, BackendChoice::kNccl}) {
    if (text == to_string(choice)) return choice;
  }
  return std::nullopt;
}

}  // namespace ddprun
