// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/timex.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <memory>
#include <utility>

#include "agent/gpu/gpu_helper.h"
#include "agent/gpu/gpu_process.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/process_facts.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/facts.h"
#include "ctl/doctor/probe.h"
#include "ctl/doctor/questions.h"

namespace ddprun::doctor {
namespace {

// One that is under way, and where its answer goes.
template <typename T>
class Question {
 public:
  Question(Asked<T>& asked, const std::string& not_asked, const std::function<Probe::Fields()>& ask,
           std::function<T(const Probe::Fields&)> read)
      : asked_(asked), read_(std::move(read)) {
    asked_.not_asked = not_asked;
    if (not_asked.empty()) probe_ = std::make_unique<Probe>(ask);
  }
  void wait(Deadline deadline) {
    if (!probe_) return;
    if (const auto fields = probe_->answer(deadline)) asked_.answer = read_(*fields);
  }

 private:
  Asked<T>& asked_;
  std::function<T(const Probe::Fields&)> read_;
  std::unique_ptr<Probe> probe_;
};

// The kernel's log from its start: a record per read of the device.
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

// One question after the other, of one process.
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
  facts.is_real_root = is_real;
  facts.uid = ::geteuid();
  facts.host_name = host_name();
  facts.endpoint = options.endpoint;

  // What may block begins first.
  const auto directory = [&](Asked<DirectorySpace>& asked, const char* check,
                             const std::string& path, const char* none) {
    const std::string reason = wants(check) ? path.empty() ? none : "" : "not wanted";
    return Question<DirectorySpace>(
        asked, reason, [=] { return look_at_directory(path); }, directory_of_fields);
  };
  const std::string tmp = find_variable(facts.environment, env::kTmpdir).value_or("/tmp");
  auto shm = directory(facts.shared_memory, "shared_memory", root.at("/dev/shm"), "");
  auto tmp_dir = directory(facts.tmp_dir, "tmp_dir", root.at(tmp), "");
  auto state_dir = directory(facts.state_dir, "state_dir", options.state_dir,
                             "no --state-dir, and there is no /var/lib/ddprun");
  auto log_dir = directory(facts.log_dir, "log_dir", options.log_dir, "no --log-dir");
  Question<NameAnswer> name(
      facts.own_name,
      wants("host_name") ? reason_against(is_real, facts.host_name, "") : "not wanted",
      [&] { return look_up_name(facts.host_name); }, name_of_fields);
  Question<RouteAnswer> route(
      facts.route,
      wants("interface") ? reason_against(is_real, options.endpoint, "no --rdzv-endpoint")
                         : "not wanted",
      [&] { return look_up_route(options.endpoint); }, route_of_fields);
  const bool wants_endpoint =
      wants("endpoint") || wants("endpoint_clock") || wants("endpoint_version");
  Question<EndpointAnswer> rendezvous(
      facts.rendezvous,
      wants_endpoint && options.ask_endpoint
          ? reason_against(is_real, options.endpoint, "no --rdzv-endpoint")
          : "no --rdzv-endpoint",
      [&] { return endpoint_fields(options.ask_endpoint()); }, endpoint_of_fields);
  const auto read_more = [&](const Probe::Fields& fields) {
    facts.files.add(Readings::from_fields(fields));
    return true;
  };
  Question<bool> rdma(
      facts.rdma, root.names("/sys/class/infiniband").empty() ? "no RDMA adapter here" : "",
      [&] { return read_rdma_files(root).to_fields(); }, read_more);
  Question<bool> link_speeds(
      facts.link_speeds, root.names("/sys/class/net").empty() ? "no interface here" : "",
      [&] { return read_link_speeds(root).to_fields(); }, read_more);

  read_host_files(root, facts.files);
  read_network_files(root, facts.files);
  read_gpu_files(root, facts.files);
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
  shm.wait(deadline);
  tmp_dir.wait(deadline);
  state_dir.wait(deadline);
  log_dir.wait(deadline);
  name.wait(deadline);
  route.wait(deadline);
  rendezvous.wait(deadline);
  rdma.wait(deadline);
  link_speeds.wait(deadline);
  return facts;
}

}  // namespace ddprun::doctor
