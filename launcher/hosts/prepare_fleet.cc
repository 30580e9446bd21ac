// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/prepare_fleet.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

#include "common/dangling_link.h"
#include "common/error.h"
#include "common/process_facts.h"
#include "common/random_id.h"
#include "common/unique_fd.h"
#include "launcher/hosts/host_list.h"
#include "launcher/output_setup.h"
#include "launcher/own_address.h"
#include "rendezvous/store_server/file_limit.h"

namespace ddprun::launcher {
namespace {

constexpr char kPwd[] = "PWD";

// "" and the text, or what is wrong. A pipe is fine: --hostfile=<(command).
std::string read_file(const std::string& path, std::string& text) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return "--hostfile=" + path + ": " + opening_trouble(path, errno);
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
    if (size == 0) return {};
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return "--hostfile=" + path + ": " + errno_text(errno);
    text.append(buffer.data(), static_cast<std::size_t>(size));
    if (text.size() > kMostHostFileBytes) return {};  // the parser says so
  }
}

}  // namespace

std::string working_directory(const Environment& environment) {
  struct stat here {
  }, told{};
  const auto pwd = find_variable(environment, kPwd);
  if (pwd && pwd->starts_with('/') && ::stat(".", &here) == 0 && ::stat(pwd->c_str(), &told) == 0 &&
      here.st_dev == told.st_dev && here.st_ino == told.st_ino) {
    return *pwd;
  }
  std::array<char, PATH_MAX> buffer;
  return ::getcwd(buffer.data(), buffer.size()) != nullptr ? buffer.data() : "";
}

FleetPlan prepare_fleet(const CommandLine& line, const Environment& environment) {
  store::raise_file_limit();
  const auto given = line.values.of_any_machine();
  FleetRequest request{.config = line.config,
                       .given = given,
                       .environment = environment,
                       .hostfile_text = {},
                       .directory = working_directory(environment),
                       .own_program = own_folder() + "/ddprun",
                       .own_host = host_name(),
                       .random_id = line.config.dry_run ? kDrawnAtStart : random_id(),
                       .is_own_address = [](const std::string& host) {
                         return is_own_address(host).value_or(false);
                       }};
  FleetPlan refused;
  if (const std::string& path = line.config.hosts.hostfile; !path.empty()) {
    const std::string problem = read_file(path, request.hostfile_text);
    if (!problem.empty()) refused.problems.push_back(problem);
  }
  if (request.directory.empty()) {
    refused.problems.emplace_back(
        "the working directory is gone: start ddprun in one that is there");
  }
  return refused.problems.empty() ? plan_fleet(request) : refused;
}

}  // namespace ddprun::launcher
