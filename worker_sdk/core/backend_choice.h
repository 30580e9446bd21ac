// SPDX-License-Identifier: Apache-2.0
// The backend that the user asks for. Session::make_communicator() decides which one is used.
#pragma once

#include <optional>
#include <string_view>

namespace ddprun {

enum class BackendChoice { kAuto, kHost, kNccl };

const char* to_string(BackendChoice choice);

// Accepts "auto", "host" and "nccl"; nullopt for anything else.
std::optional<BackendChoice> parse_backend_choice(std::string_view text);

}  // namespace ddprun
