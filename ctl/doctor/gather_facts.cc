// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>

#include "agent/gpu/gpu_helper.h"
#include "agent/gpu/gpu_lines.h"
#include "common/cgroup_limits.h"
#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/interfaces.h"
#include "common/process_facts.h"
#include "common/socket.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/facts.h"
#include "ctl/doctor/probe.h"

namespace ddprun::doctor {
namespace {

// Questions that run in processes of their own. A probe returns the answer as fields.

std::string field(const Probe::Fields& fields, std::size_t at) {
  return at < fields.size() ? fields[at] : "";
}

std::uint64_t number_field(const Probe::Fields& fields, std::size_t at) {
  return std::strtoull(field(fields, at).c_str(), nullptr, 10);
}

Probe::Fields look_at_directory(const std::string& path) {
  struct statvfs space;
  if (::statvfs(path.c_str(), &space) != 0) return {path, std::to_string(errno)};
  const auto bytes = [&](fsblkcnt_t blocks) { return std::to_string(blocks * space.f_frsize); };
  // Counts as df(1) does: blocks that only root may use are left out.
  return {path, "0", bytes(space.f_blocks - space.f_bfree + space.f_bavail), bytes(space.f_bavail),
          (space.f_flag & ST_RDONLY) != 0 ? "1" : "0"};
}

DirectorySpace directory_of_fields(const Probe::Fields& fields) {
  return {field(fields, 0), static_cast<int>(number_field(fields, 1)), number_field(fields, 2),
          number_field(fields, 3), field(fields, 4) == "1"};
}

Probe::Fields look_up_name(const std::string& name) {
  Probe::Fields fields = {""};
  try {
    for (const SocketAddress& address : resolve({.host = name, .port = 1})) {
      fields.push_back(address.host_text());
    }
  } catch (const Error& error) {
    fields = {error.what()};
  }
  return fields;
}

NameAnswer name_of_fields(const Probe::Fields& fields) {
  NameAnswer answer;
  answer.failure = field(fields, 0);
  if (fields.size() > 1) answer.addresses.assign(fields.begin() + 1, fields.end());
  return answer;
}

// `endpoint` is as in --rdzv-endpoint; the first of several counts. Sends no packets except to look
// up the name.
Probe::Fields look_up_route(const std::string& endpoint) {
  try {
    const EndpointList list = parse_servers(endpoint, kDefaultRendezvousPort);
    if (!list.problem.empty()) return {list.problem};
    const SocketAddress peer = resolve(list.endpoints.front()).front();
    // Connecting a datagram socket only looks up the route.
    const UniqueFd fd(::socket(peer.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const auto* target = reinterpret_cast<const sockaddr*>(&peer.storage);
    if (!fd || ::connect(fd.get(), target, peer.length) != 0) {
      return {"no route to " + peer.host_text() + ": " + errno_text(errno)};
    }
    const std::string address = local_address(fd.get()).host_text();
    return {"", interface_of(address), address};
  } catch (const Error& error) {
    return {error.what()};
  }
}

RouteAnswer route_of_fields(const Probe::Fields& fields) {
  return {field(fields, 0), field(fields, 1), field(fields, 2)};
}

Probe::Fields endpoint_fields(const EndpointAnswer& answer) {
  return {answer.failure, answer.version,
          answer.skew_seconds ? std::to_string(*answer.skew_seconds) : ""};
}

EndpointAnswer endpoint_of_fields(const Probe::Fields& fields) {
  EndpointAnswer answer{field(fields, 0), field(fields, 1), {}};
  if (const std::string skew = field(fields, 2); !skew.empty()) {
    answer.skew_seconds = std::strtod(skew.c_str(), nullptr);
  }
  return answer;
}

// Looks for both as ddprun-stacks does, which loads the library and starts the program.
Probe::Fields look_for_stack_readers(const std::string& folders) {
  const bool has_libdw = ::dlopen("libdw.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr;
  bool has_py_spy = false;
  for (const std::string& folder : filled_parts(folders, ":")) {
    has_py_spy |= ::access((folder + "/py-spy").c_str(), X_OK) == 0;
  }
  return {has_libdw ? "1" : "0", has_py_spy ? "1" : "0"};
}

StackReaders stack_readers_of_fields(const Probe::Fields& fields) {
  return {field(fields, 0) == "1", field(fields, 1) == "1"};
}

// Reads the kernel's log from its start. Each read of the device returns one record.
std::optional<std::string> read_kernel_log(const Root& root) {
  constexpr std::size_t kMostBytes = 8 << 20;
  const UniqueFd fd(::open(root.at("/dev/kmsg").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return std::nullopt;
  std::string text;
  char record[8192];
  while (text.size() < kMostBytes) {
    const ssize_t size = ::read(fd.get(), record, sizeof record);
    if (size < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: it was overwritten
    if (size < 0 && errno != EAGAIN && text.empty()) return std::nullopt;
    if (size <= 0) break;
    text.append(record, static_cast<std::size_t>(size));
  }
  return text;
}

GpuMemoryAnswer memory_answer(const std::optional<std::string>& lines, std::uint64_t least_bytes) {
  GpuMemoryAnswer answer;
  answer.is_known = lines.has_value();
  std::vector<agent::GpuProcess> holders;
  for (const std::string& line : lines_in(lines.value_or(""))) {
    const auto process = agent::parse_gpu_process(line);
    if (process && (process->bytes == 0 || process->bytes > least_bytes)) {
      holders.push_back(*process);
    }
  }
  answer.holders = agent::describe(holders, 4);
  return answer;
}

GpuStateAnswer state_answer(const std::optional<std::string>& lines) {
  GpuStateAnswer answer;
  answer.is_known = lines.has_value();
  for (const std::string& line : lines_in(lines.value_or(""))) {
    if (const auto reading = agent::parse_gpu_reading(line)) answer.readings.push_back(*reading);
  }
  return answer;
}

// Asks the GPU helper one question after the other.
void ask_gpus(Facts& facts, std::uint64_t least_bytes, Deadline deadline) {
  using Lines = std::optional<std::string>;
  boost::asio::io_context io;
  const auto helper = agent::GpuHelper::start(io, helper_program("ddprun-gpus"));
  const char* reason = helper ? "" : "no NVIDIA driver here, or ddprun-gpus is missing";
  facts.gpu_memory.not_asked = facts.gpu_state.not_asked = reason;
  if (!helper) return;
  const auto told_state = [&](const Lines& lines) {
    facts.gpu_state.answer = state_answer(lines);
    io.stop();
  };
  helper->ask(agent::GpuRequest::kProcesses, [&](const Lines& lines) {
    facts.gpu_memory.answer = memory_answer(lines, least_bytes);
    boost::asio::post(io, [&] { helper->ask(agent::GpuRequest::kReadings, told_state); });
  });
  io.run_until(deadline.at());
}

std::string reason_against(bool is_real, const std::string& path, const char* what) {
  if (!is_real) return "not asked of another root";
  return path.empty() ? std::string(what) : "";
}

}  // namespace

Facts gather_facts(const FactsOptions& options) {
  const Deadline deadline = Deadline::after(options.limit);
  const Root root(options.root);
  const bool is_real = root.is_real();
  const auto wants = [&](const char* check) {
    return !options.is_wanted || options.is_wanted(check);
  };
  Facts facts;
  facts.environment = current_environment();
  facts.cpu_quota = cpu_quota(options.root);
  facts.uid = ::geteuid();
  facts.host_name = host_name();
  facts.endpoint = options.endpoint;

  // Starts the questions that may block first.
  std::vector<std::function<void()>> waits;  // these wait for the answers
  const auto ask = [&](auto& asked, const std::string& not_asked, const auto& question,
                       const auto& read) {
    asked.not_asked = not_asked;
    if (!not_asked.empty()) return;
    waits.push_back([&asked, read, deadline, probe = std::make_shared<Probe>(question)] {
      if (const auto fields = probe->answer(deadline)) asked.answer = read(*fields);
    });
  };
  const auto ask_directory = [&](Asked<DirectorySpace>& asked, const char* check,
                                 const std::string& path, const char* none) {
    const std::string reason = wants(check) ? path.empty() ? none : "" : "not wanted";
    ask(
        asked, reason, [&path] { return look_at_directory(path); }, directory_of_fields);
  };
  const std::string tmp = find_variable(facts.environment, env::kTmpdir).value_or("/tmp");
  ask_directory(facts.shared_memory, "shared_memory", root.at("/dev/shm"), "");
  ask_directory(facts.tmp_dir, "tmp_dir", root.at(tmp), "");
  ask_directory(facts.state_dir, "state_dir", options.state_dir,
                "no --state-dir, and there is no /var/lib/ddprun");
  ask_directory(facts.log_dir, "log_dir", options.log_dir, "no --log-dir");
  ask(
      facts.own_name,
      wants("host_name") ? reason_against(is_real, facts.host_name, "") : "not wanted",
      [&] { return look_up_name(facts.host_name); }, name_of_fields);
  const std::string no_endpoint = reason_against(is_real, options.endpoint, "no --rdzv-endpoint");
  ask(
      facts.route, wants("interface") ? no_endpoint : "not wanted",
      [&] { return look_up_route(options.endpoint); }, route_of_fields);
  const bool wants_endpoint =
      wants("endpoint") || wants("endpoint_clock") || wants("endpoint_version");
  ask(
      facts.rendezvous, wants_endpoint && options.ask_endpoint ? no_endpoint : "no --rdzv-endpoint",
      [&] { return endpoint_fields(options.ask_endpoint()); }, endpoint_of_fields);
  const std::string path = find_variable(facts.environment, "PATH").value_or("");
  ask(
      facts.stack_readers,
      wants("stacks") ? reason_against(is_real, path, "no PATH") : "not wanted",
      [&] { return look_for_stack_readers(path); }, stack_readers_of_fields);
  const auto read_more = [&](const Probe::Fields& fields) {
    facts.files.add(Readings::from_fields(fields));
    return true;
  };
  ask(
      facts.rdma, root.names("/sys/class/infiniband").empty() ? "no RDMA adapter here" : "",
      [&] { return read_rdma_files(root).to_fields(); }, read_more);
  ask(
      facts.link_speeds, root.names("/sys/class/net").empty() ? "no interface here" : "",
      [&] { return read_link_speeds(root).to_fields(); }, read_more);

  read_files(root, facts.files);
  for (const std::string& each : root.names("/sys/class/net")) facts.interfaces.insert(each);
  if (facts.files.text("/proc/driver/nvidia/version")) facts.kernel_log = read_kernel_log(root);
  facts.packages = find_packages(root, package_prefixes(facts.environment, own_folder()));
  if (is_real) {
    timex time{};
    if (const int state = ::adjtimex(&time); state >= 0) {
      facts.is_clock_synchronised = state != TIME_ERROR && (time.status & STA_UNSYNC) == 0;
    }
  }
  facts.gpu_memory.not_asked = facts.gpu_state.not_asked = "not asked of another root";
  const auto wants_gpus = [&] {
    for (const Check& check : gpu_state_checks()) {
      if (wants(check.name)) return true;
    }
    return wants("gpu_memory");
  };
  if (is_real && wants_gpus()) ask_gpus(facts, options.gpu_memory_bytes, deadline);
  for (const auto& wait : waits) wait();
  return facts;
}

}  // namespace ddprun::doctor
