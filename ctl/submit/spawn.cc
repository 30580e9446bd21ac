// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/spawn.h"

#include <spawn.h>

#include <cerrno>
#include <csignal>

#include "common/error.h"

namespace ddprun::submit {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

// What posix_spawn is told; freed with it.
class SpawnParts {
 public:
  explicit SpawnParts(const SpawnCall& call) {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
    if (!call.directory.empty()) {
      ::posix_spawn_file_actions_addchdir_np(&actions, call.directory.c_str());
    }
    int number = 0;
    for (const int fd : call.descriptors) {
      if (fd >= 0) ::posix_spawn_file_actions_adddup2(&actions, fd, number);
      ++number;
    }
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    int flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    if (call.own_session) flags |= POSIX_SPAWN_SETSID;
    ::posix_spawnattr_setflags(&attributes, static_cast<short>(flags));
  }
  ~SpawnParts() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnParts(const SpawnParts&) = delete;
  SpawnParts& operator=(const SpawnParts&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

}  // namespace

pid_t spawn(const SpawnCall& call) {
  Environment environment = current_environment();
  for (const std::string& name : call.without) environment.erase(name);
  for (const auto& [name, value] : call.environment) environment[name] = value;
  std::vector<std::string> strings = to_strings(environment);
  std::vector<std::string> words = call.argv;
  const SpawnParts parts(call);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, words.front().c_str(), &parts.actions, &parts.attributes,
                                   pointers(words).data(), pointers(strings).data());
  const std::string place = call.directory.empty() ? "" : " in " + call.directory;
  if (error == ENOENT || error == EACCES || error == ENOTDIR) {
    throw Error(ErrorCode::kUnsupported,
                "can't start " + words.front() + place + ": " + errno_text(error));
  }
  if (error != 0) throw_system_error("starting " + words.front() + place, error);
  return pid;
}

}  // namespace ddprun::submit
