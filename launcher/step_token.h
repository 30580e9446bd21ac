// SPDX-License-Identifier: Apache-2.0
// A token that the nodes of a Slurm step agree on by themselves (docs/security.md, "Within a Slurm
// step"), through a file in a shared folder.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/environment.h"
#include "common/secret.h"

namespace ddprun::launcher {

// Whether nodes share a file system of this type: statfs(2)'s f_type.
bool is_network_file_system(std::uint64_t type);

// Returns the file's folder: below DDPRUN_SHARED_DIR, else in the user's cache if a network file
// system has that. nullopt: there is none. `type_of` gives a path's f_type; nullopt: nothing is
// there. Pure.
std::optional<std::string> shared_folder(
    const Environment& environment, uid_t user,
    const std::function<std::optional<std::uint64_t>(const std::string& path)>& type_of);

// Returns a name that all nodes of a step share, and no other step or later run of it has. Empty:
// this is no step. Pure.
std::string step_token_name(const Environment& environment);

struct StepToken {
  std::string path;
  std::shared_ptr<const Secret> secret;
};

// Makes folder/name, or takes another node's file, and makes the folder if it is missing. Throws
// Error, one line: kInvalidArgument if others could read or change the file, else with the reason.
StepToken agree_on_token(const std::string& folder, const std::string& name);

// Finds the folder and agrees on the token for this process, within a bounded time. nullopt: there
// is no such folder.
std::optional<StepToken> own_step_token(const Environment& environment);

// Removes the file. Waits at most 2 s if the file system doesn't answer.
void remove_step_token(const std::string& path);

}  // namespace ddprun::launcher
