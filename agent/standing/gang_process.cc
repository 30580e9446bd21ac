// SPDX-License-Identifier: Apache-2.0
#include "agent/standing/gang_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <utility>

#include "agent/isolation/cgroup_tree.h"
#include "agent/output/line_prefix.h"
#include "common/error.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::launcher {

namespace asio = boost::asio;

namespace {

// The limit until it is executed. Its directory may be on a file system that never answers.
constexpr std::chrono::seconds kStartLimit{10};

// Variables of the service alone, see systemd.exec(5).
constexpr std::array<std::string_view, 9> kOfService = {
    "INVOCATION_ID",           "JOURNAL_STREAM",    "SYSTEMD_EXEC_PID",
    "STATE_DIRECTORY",         "RUNTIME_DIRECTORY", "CACHE_DIRECTORY",
    "CONFIGURATION_DIRECTORY", "LOGS_DIRECTORY",    "CREDENTIALS_DIRECTORY"};

bool is_of_agent(const std::string& name) {
  return name.starts_with("DDPRUN_") || name.starts_with("PET_") ||
         std::ranges::find(kOfService, name) != kOfService.end();
}

constexpr char kMount[] = "/sys/fs/cgroup";

}  // namespace

std::shared_ptr<GangProcess> GangProcess::start(asio::io_context& io, GangCommand command,
                                                Handlers handlers) {
  ChildCommand child;
  child.argv = std::move(command.argv);
  child.environment = std::move(command.environment);
  child.descriptors = {ChildCommand::kNothing, command.out.get(), command.err.get()};
  child.directory = command.directory;
  child.own_session = true;
  child.dies_with_us = true;
  // When memory runs out, the kernel should kill the job and not the agent.
  child.plain_oom_score = true;
  // The agent is small and has only one important thread, so a copy of it costs little.
  Pipe report = make_pipe();
  std::shared_ptr<GangProcess> gang(
      new GangProcess(io, child, std::move(handlers), std::move(report.read_end)));
  gang->child_ = agent::WatchedChild::adopt(io, start_child_apart(child, report.write_end.get()),
                                            [weak = std::weak_ptr(gang)](int wait_status) {
                                              if (const auto self = weak.lock())
                                                self->end(wait_status);
                                            });
  report.write_end.reset();
  gang->await_report();
  run_after(gang->limit_, kStartLimit, [gang] { gang->give_up(); });
  return gang;
}

GangProcess::GangProcess(asio::io_context& io, const ChildCommand& command, Handlers handlers,
                         UniqueFd report)
    : program_(command.argv.front()),
      directory_(command.directory),
      handlers_(std::move(handlers)),
      report_(io, report.release()),
      limit_(io) {
  report_.non_blocking(true);
}

void GangProcess::await_report() {
  when_readable(report_, [self = shared_from_this()] { self->take_report(); });
}

// Reads the child's report. An empty pipe that ends means that it is executed, or was killed
// before.
void GangProcess::take_report() {
  StartFailure failure;
  const ssize_t size = ::read(report_.native_handle(), &failure, sizeof failure);
  if (size < 0 && (errno == EINTR || errno == EAGAIN)) return await_report();
  boost::system::error_code ignored;
  report_.close(ignored);
  limit_.cancel();
  if (size == sizeof failure) {
    why_ = concat(failure.is_of_directory ? "can't enter " + directory_ : "can't start " + program_,
                  ": ", errno_text(failure.error_number));
  } else if (handlers_.began) {
    std::exchange(handlers_.began, nullptr)();
  }
}

// Gives the child up at once: if the file system holds it, SIGKILL doesn't end it either.
void GangProcess::give_up() {
  boost::system::error_code ignored;
  report_.close(ignored);
  why_ = concat("can't enter ", directory_, ": no answer within ", kStartLimit.count(), " s");
  signal(SIGKILL);
  end(0);
}

void GangProcess::end(int wait_status) {
  if (!handlers_.ended) return;
  if (report_.is_open()) take_report();  // the report was written before it ended
  handlers_.began = nullptr;
  std::exchange(handlers_.ended, nullptr)(wait_status, why_);
}

std::vector<std::string> gang_arguments(const gangs::StartPart& start,
                                        const StandingOptions& options,
                                        const std::string& program) {
  std::vector<std::string> arguments = {program,
                                        "--rdzv-endpoint=" + options.endpoint_text,
                                        "--rdzv-conf=is_host=0",
                                        "--rdzv-id=" + start.gang,
                                        "--nnodes=" + start.nodes,
                                        "--nproc-per-node=" + start.workers};
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) arguments.push_back(concat(flag, "=", value));
  };
  // A reader of all nodes' output must be able to tell the ranks apart.
  if (start.nodes != "1") add("--log-line-prefix-template", agent::LinePrefix::kRankTemplate);
  add("--token-file", options.token_file);
  add("--tls-ca", options.tls.ca);
  add("--tls-cert", options.tls.cert);
  add("--tls-key", options.tls.key);
  arguments.insert(arguments.end(), start.arguments.begin(), start.arguments.end());
  return arguments;
}

std::vector<std::string> gang_environment(const gangs::StartPart& start, Environment own) {
  std::erase_if(own, [](const auto& variable) { return is_of_agent(variable.first); });
  for (const std::string& variable : start.environment) {
    const std::size_t equals = variable.find('=');
    own[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  return to_strings(own);
}

std::optional<std::string> supervisor_leaf(std::string_view own_cgroups, const std::string& mount) {
  constexpr std::string_view kUnified = "0::";
  while (!own_cgroups.empty()) {
    const std::string_view line = take_until(own_cgroups, "\n");
    if (!line.starts_with(kUnified)) continue;
    const std::string_view path = line.substr(kUnified.size());
    if (path == "/" || path.ends_with(concat("/", agent::kSupervisor))) return std::nullopt;
    return concat(mount, path, "/", agent::kSupervisor);
  }
  return std::nullopt;
}

std::string enter_supervisor_leaf() {
  std::ostringstream own;
  own << std::ifstream("/proc/self/cgroup").rdbuf();
  const auto leaf = supervisor_leaf(own.str(), kMount);
  const std::string place = leaf ? leaf->substr(0, leaf->rfind('/')) : "";
  if (!leaf || !agent::CgroupTree().is_marked_delegated(place)) return {};
  if (::mkdir(leaf->c_str(), 0755) != 0 && errno != EEXIST) {
    return concat("can't make ", *leaf, ": ", errno_text(errno));
  }
  const std::string members = *leaf + "/cgroup.procs";
  const UniqueFd fd(::open(members.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd && ::write(fd.get(), "0", 1) == 1) return {};
  return concat("can't enter ", *leaf, ": ", errno_text(errno));
}

}  // namespace ddprun::launcher
