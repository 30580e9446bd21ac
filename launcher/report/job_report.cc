// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/job_report.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/fd_text.h"
#include "common/json.h"
#include "common/process_facts.h"
#include "common/regular_file.h"
#include "common/signal_names.h"
#include "common/wall_time.h"
#include "launcher/failure_report.h"
#include "launcher/terminal_text.h"
#include "rendezvous/messages/json_fields.h"

namespace ddprun::launcher {
namespace {

namespace json = boost::json;

constexpr int kReportVersion = 1;  // of the keys: grows when one is removed or changes its meaning
constexpr std::size_t kMostRounds = 100;
constexpr std::size_t kMostArguments = 1'000;

json::value text_or_null(const std::string& text) {
  return text.empty() ? json::value(nullptr) : json::value(clean_text(text));
}

json::array texts_of(const std::vector<std::string>& texts, std::size_t most) {
  json::array array;
  for (const std::string& text : texts) {
    if (array.size() < most) array.push_back(clean_text(text));
  }
  return array;
}

json::object failure_of(const membership::WorkerFailure& failure) {
  const bool by_signal = failure.signal_number != 0;
  const bool has_code = !by_signal && !failure.hung;
  json::object out;
  out["host"] = clean_text(failure.host);
  out["node_rank"] = failure.node_rank;
  out["global_rank"] = failure.global_rank;
  out["local_rank"] = failure.local_rank;
  out["pid"] = failure.pid > 0 ? json::value(failure.pid) : json::value(nullptr);
  out["exit_code"] = has_code ? json::value(failure.exit_code) : json::value(nullptr);
  out["signal"] = by_signal ? json::value(failure.signal_number) : json::value(nullptr);
  out["signal_name"] =
      by_signal ? json::value(signal_name(failure.signal_number)) : json::value(nullptr);
  out["hung"] = failure.hung;
  out["out_of_memory"] = text_or_null(out_of_memory(failure));
  const auto bytes = [](std::uint64_t number) {
    return number > 0 ? json::value(number) : json::value(nullptr);
  };
  out["memory_peak_bytes"] = bytes(failure.memory_peak_bytes);
  out["memory_limit_bytes"] = bytes(failure.memory_limit_bytes);
  out["start"] = text_or_null(failure.start);
  out["gpu_errors"] = text_or_null(failure.gpu_errors);
  out["note"] = text_or_null(failure.note);
  out["operation"] = text_or_null(failure.operation);
  out["flight_recorder"] = text_or_null(failure.flight_recorder);
  out["ended_at"] = text_or_null(
      failure.ended_at > 0 ? utc_text(WallTime(std::chrono::seconds(failure.ended_at))) : "");
  const std::size_t all = failure.last_lines.size();
  out["last_lines"] = texts_of(failure.hung ? std::vector<std::string>() : failure.last_lines, all);
  out["stack"] = texts_of(failure.hung ? failure.last_lines : std::vector<std::string>(), all);
  out["traceback"] = texts_of(failure.traceback, failure.traceback.size());
  out["error_file"] = text_or_null(failure.error_file);
  out["error_fields"] = further_fields(failure);
  out["log_files"] = texts_of(failure.log_files, failure.log_files.size());
  return out;
}

namespace fs = std::filesystem;

constexpr std::size_t kMostNameBytes = 200;  // leaves room for what is added to it

// Follows links, also one that leads to no file yet. A link of other users isn't followed: the
// report will replace it.
fs::path behind_links(fs::path path) {
  constexpr int kMostLinks = 40;  // as the kernel has it
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    if (is_link_of_others(path.string())) break;
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

}  // namespace

const char* state_of(const membership::JobEnd& verdict) {
  if (verdict.exit_code == 0) return "succeeded";
  if (verdict.first_failure) return "worker_failed";
  switch (static_cast<ExitCode>(verdict.exit_code)) {
    case ExitCode::kRetryable:
      return "retryable";
    case ExitCode::kNoProgress:
      return "no_progress";
    case ExitCode::kTimeLimit:
      return "time_limit";
    default:
      return verdict.exit_code > exit_status_for_signal(0) ? "stopped_by_signal" : "failed";
  }
}

JobReport::JobReport(JobFacts facts, Clock::time_point begun, WallTime begun_wall)
    : facts_(std::move(facts)), begun_(begun), begun_wall_(begun_wall) {}

void JobReport::round_began(const membership::StartRound& round, Clock::time_point now) {
  if (!rounds_.empty() && !rounds_.back().ended) rounds_.back().ended = now;
  rounds_.push_back({round, now});
  if (rounds_.size() > kMostRounds) rounds_.pop_front();
}

void JobReport::workers_run(Clock::time_point now) {
  if (!rounds_.empty()) rounds_.back().ran = now;
}

std::string JobReport::utc(Clock::time_point at) const {
  return utc_text(begun_wall_ + std::chrono::duration_cast<WallTime::duration>(at - begun_));
}

std::string JobReport::text(const membership::JobEnd& verdict, bool local, int node_rank,
                            Clock::time_point now,
                            const std::vector<std::string>& flight_recorders) const {
  json::object out;
  out["version"] = kReportVersion;
  out["state"] = state_of(verdict);
  out["exit_code"] = verdict.exit_code;
  out["reason"] = text_or_null(verdict.reason);
  json::object job;
  job["id"] = clean_text(facts_.job_id);
  job["program"] = clean_text(facts_.program);
  job["arguments"] = texts_of(facts_.arguments, kMostArguments);
  job["min_nodes"] = facts_.min_nodes;
  job["max_nodes"] = facts_.max_nodes;
  job["max_restarts"] = facts_.max_restarts;
  out["job"] = std::move(job);
  out["began_at"] = utc(begun_);
  out["ended_at"] = utc(now);
  out["seconds"] = seconds_in_thousandths(now - begun_);
  out["rounds"] = verdict.rounds;
  out["restarts"] = verdict.rounds > 0 ? verdict.rounds - 1 : 0;
  out["summary"] = text_or_null(verdict.summary);
  const auto& failure = verdict.first_failure;
  out["first_failure"] = failure ? json::value(failure_of(*failure)) : json::value(nullptr);
  out["victims"] = texts_of(verdict.victims, verdict.victims.size());
  out["excluded"] = texts_of(verdict.excluded, verdict.excluded.size());

  json::array rounds;
  for (const Round& round : rounds_) {
    const Clock::time_point ended = round.ended.value_or(now);
    json::object one;
    one["round"] = round.start.round;
    one["restart_count"] = round.start.restart_count;
    one["node_rank"] = round.start.node_rank;
    one["num_nodes"] = round.start.num_nodes;
    one["first_global_rank"] = round.start.first_global_rank;
    one["world_size"] = round.start.world_size;
    one["in_place"] = round.start.in_place;
    one["began_at"] = utc(round.began);
    one["start_seconds"] = round.ran ? json::value(seconds_in_thousandths(*round.ran - round.began))
                                     : json::value(nullptr);
    one["run_seconds"] = round.ran ? seconds_in_thousandths(ended - *round.ran) : 0.0;
    rounds.push_back(std::move(one));
  }
  json::object here;
  here["host"] = clean_text(facts_.host);
  here["node_rank"] = node_rank >= 0 ? json::value(node_rank) : json::value(nullptr);
  here["pid"] = facts_.pid;
  here["num_workers"] = facts_.num_workers;
  here["decided_by"] = local ? "this node" : "rendezvous";
  here["rounds"] = std::move(rounds);
  here["flight_recorders"] = texts_of(flight_recorders, flight_recorders.size());
  out["written_by"] = std::move(here);
  return written_json(out) + "\n";
}

ReportFile::ReportFile(std::string path) : path_(std::move(path)) {
  if (is_stdout()) return;
  path_ = with_host_name(std::move(path_));
  std::error_code error;
  const fs::path absolute = fs::absolute(path_, error);
  struct stat facts {};
  const fs::path target = behind_links(absolute);
  const bool exists = !is_link_of_others(target.string()) && ::stat(absolute.c_str(), &facts) == 0;
  const bool is_odd = exists && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode);
  const std::string text = absolute.string();
  is_fifo_ = exists && S_ISFIFO(facts.st_mode);
  is_direct_ = is_odd || text.starts_with("/dev/fd/") || text.starts_with("/proc/") ||
               text == "/dev/stdout" || text == "/dev/stderr";
  path_ = (is_direct_ ? absolute : target).string();
}

UniqueFd ReportFile::open_direct() const {
  return open_to_write(path_, O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
}

NewFile ReportFile::make_temporary(mode_t mode) const {
  const fs::path path(path_);
  const std::string name = path.filename().string().substr(0, kMostNameBytes);
  return make_new_file((path.parent_path() / ("." + name + ".")).string(), mode);
}

std::string ReportFile::problem() const {
  if (is_stdout()) return {};
  // A named pipe isn't opened: to its reader, that would look like a write.
  if (is_direct_ && !is_fifo_) return open_direct() ? "" : errno_text(errno);
  std::error_code error;
  if (fs::is_directory(path_, error)) return "is a directory";
  const bool exists = fs::exists(path_, error);
  if (::access(path_.c_str(), F_OK) != 0 && errno == ENAMETOOLONG) return errno_text(errno);
  const std::string looked_at = exists ? path_ : fs::path(path_).parent_path().string();
  return ::access(looked_at.c_str(), W_OK) == 0 ? "" : errno_text(errno);
}

std::string ReportFile::problem_by_trial() const {
  std::string found = problem();
  if (!found.empty() || is_stdout() || is_direct_) return found;
  const NewFile file = make_temporary(0600);
  if (!file.fd) return errno_text(errno);
  if (const int error = write_text(file.fd.get(), std::string(4096, '\0')); error != 0) {
    found = errno_text(error);
  }
  ::unlink(file.path.c_str());
  return found;
}

void ReportFile::begin() {
  if (is_direct_) {
    direct_ = open_direct();
  } else if (!is_stdout()) {
    ::unlink(path_.c_str());
  }
}

std::string ReportFile::write(const std::string& text) {
  if (is_stdout()) return write_to_stdout(text) ? "" : "not all of it was taken";
  if (is_direct_) {
    if (!direct_) direct_ = open_direct();
    if (!direct_) return errno == ENXIO ? "nobody reads it" : errno_text(errno);
    return write_within(direct_.get(), text, kLastLinesPatience) ? "" : "not all of it was taken";
  }
  NewFile file = make_temporary(0666);
  std::string problem = replace(text, file);
  if (!problem.empty()) ::unlink(file.path.c_str());
  return problem;
}

std::string ReportFile::replace(const std::string& text, NewFile& file) const {
  if (!file.fd) return errno_text(errno);
  if (const int error = write_text(file.fd.get(), text); error != 0) return errno_text(error);
  if (::fsync(file.fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP) return errno_text(errno);
  file.fd.reset();
  if (::rename(file.path.c_str(), path_.c_str()) != 0) return errno_text(errno);
  sync_directory(fs::path(path_).parent_path().string());
  return {};
}

std::string with_host_name(std::string path) {
  constexpr std::string_view kHostname = "${hostname}";
  const std::string name = host_name();
  for (std::size_t at = 0; (at = path.find(kHostname, at)) != std::string::npos;
       at += name.size()) {
    path.replace(at, kHostname.size(), name);
  }
  return path;
}

}  // namespace ddprun::launcher
