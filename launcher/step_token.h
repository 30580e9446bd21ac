// SPDX-License-Identifier: Apache-2.0
// A token on which the nodes of a Slurm step agree by themselves (docs/security.md, "Within a Slurm
// step"). They do so through a file in a folder that they share.
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

// A file system that nodes have in common, by statfs(2)'s f_type.
bool is_network_file_system(std::uint64_t type);

// The file's folder: below DDPRUN_SHARED_DIR, else in the user's cache if that is on a network file
// system. nullopt: there is none. `type_of`: f_type of a path; nullopt: nothing is there. Pure.
std::optional<std::string> shared_folder(
    const Environment& environment, uid_t user,
    const std::function<std::optional<std::uint64_t>(const std::string& path)>& type_of);

// The same for all nodes of a step, and for no other step or later run of it; empty: it is no step.
// Pure.
std::string step_token_name(const Environment& environment);

struct StepToken {
  std::string path;
  std::shared_ptr<const Secret> secret;
};

// Makes folder/name, or takes what another node has made, and the folder where it is missing.
// Throws Error, one line: kInvalidArgument where others could read or change it, else it can't be.
StepToken agree_on_token(const std::string& folder, const std::string& name);

// For this process: the two together, within a bounded time. nullopt: there is no such folder.
std::optional<StepToken> own_step_token(const Environment& environment);

// Removes the file. Waits at most 2 s for a file system that doesn't answer.
void remove_step_token(const std::string& path);

}  // namespace ddprun::launcher
