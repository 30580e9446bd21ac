// SPDX-License-Identifier: Apache-2.0
#include "agent/failure_details.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iterator>
#include <utility>

#include "agent/output/last_exception.h"
#include "agent/output/log_tree.h"
#include "agent/output/log_writer.h"
#include "common/fd_text.h"
#include "common/json.h"
#include "common/parsed_number.h"
#include "common/regular_file.h"
#include "common/text.h"

namespace ddprun::agent {
namespace {

constexpr char kVmstat[] = "/proc/vmstat";

std::string in_units(std::uint64_t bytes) {
  constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;
  return bytes < kMebi ? concat(bytes, " bytes") : concat(bytes / kMebi, " MiB");
}

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    lines.emplace_back(take_until(text, "\n"));
  }
  return lines;
}

void erase_if_empty(boost::json::object& object, const char* name) {
  const boost::json::value* value = object.if_contains(name);
  const bool is_empty = value && value->is_object() && value->as_object().empty();
  if (is_empty) object.erase(name);
}

// Returns the error file's other fields, without the common ones that are reported by name.
std::string further_fields(boost::json::object root) {
  boost::json::value* message = root.if_contains("message");
  if (message && message->is_object()) {
    boost::json::object& object = message->as_object();
    boost::json::value* extra = object.if_contains("extraInfo");
    if (extra && extra->is_object()) {
      extra->as_object().erase("py_callstack");
      extra->as_object().erase("timestamp");
      erase_if_empty(object, "extraInfo");
    }
    object.erase("message");
    object.erase("errorCode");
    erase_if_empty(root, "message");
  } else {
    root.erase("message");
  }
  if (root.empty()) return {};
  std::string text = written_json(root);
  return text.size() <= membership::kMaxErrorFieldsBytes ? text : "";
}

using std::chrono::milliseconds;

std::string seconds_text(milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(time.count()) / 1000);
  return text;
}

std::vector<int> all_but(const std::vector<int>& missing, int size) {
  constexpr int kMaxListed = 4096;  // in a larger world only the number of ranks is reported
  std::vector<int> others;
  for (int rank = 0; rank < size && size <= kMaxListed; ++rank) {
    if (!std::binary_search(missing.begin(), missing.end(), rank)) others.push_back(rank);
  }
  return others;
}

// Follows no link: a worker that runs as another user could have a file of ours shown.
WorkerError read_error_file(const std::string& path) {
  const RegularFile file = open_regular_file(path, O_NOFOLLOW);
  return parse_error_file(file.fd ? read_text(file.fd.get(), kMaxFileBytes).text : "");
}

using Paths = std::vector<std::string>;

Paths log_files(const std::string& directory, int local_rank) {
  Paths files;
  for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
    std::string file = LogTree::log_file(directory, local_rank, stream);
    if (::access(file.c_str(), F_OK) == 0) files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

std::optional<std::uint64_t> oom_kills(std::string_view text) {
  while (!text.empty()) {
    std::string_view line = take_until(text, "\n");
    if (take_until(line, " ") == "oom_kill") return parsed_number<std::uint64_t>(line);
  }
  return std::nullopt;
}

MemoryKills::MemoryKills(std::string root) : tree_(std::move(root)) {}

std::string MemoryKills::text_of(const std::string& path) const {
  return tree_.read(path, nullptr).value_or("");
}

std::optional<std::uint64_t> MemoryKills::read_kills(const std::string& path) const {
  return oom_kills(text_of(path));
}

std::optional<MemoryKills::Count> MemoryKills::count_of(const MemoryCgroup& cgroup) const {
  for (const std::string& directory : cgroup.directories) {
    const std::string file = directory + "/" + cgroup.events_file();
    if (const auto killed = read_kills(file)) return Count{file, *killed};
    // v1: each cgroup counts alone; its parent's count doesn't include it.
    if (!cgroup.is_v2) break;
  }
  return std::nullopt;
}

void MemoryKills::begin_round() {
  if (mountinfo_.empty()) mountinfo_ = text_of("/proc/self/mountinfo");
  cgroup_ = memory_cgroup(text_of("/proc/self/cgroup"), mountinfo_);
  own_ = cgroup_ ? count_of(*cgroup_) : std::nullopt;
  hosts_.reset();
  if (own_) return;
  if (const auto killed = read_kills(kVmstat)) hosts_ = Count{kVmstat, *killed};
}

void MemoryKills::workers_run(const std::vector<pid_t>& pids) {
  if (own_) return;
  const auto pid = std::find_if(pids.begin(), pids.end(), [](pid_t each) { return each > 0; });
  if (pid == pids.end()) return;
  auto theirs = memory_cgroup(text_of(concat("/proc/", *pid, "/cgroup")), mountinfo_);
  if (!theirs) return;
  own_ = count_of(*theirs);
  cgroup_ = std::move(theirs);
}

// Returns the least limit of the cgroup and those above it: it is reached first.
std::optional<std::uint64_t> MemoryKills::limit() const {
  std::optional<std::uint64_t> least;
  for (const std::string& directory : cgroup_->directories) {
    const auto bytes = memory_limit_bytes(text_of(directory + "/" + cgroup_->limit_file()));
    if (bytes) least = std::min(least.value_or(*bytes), *bytes);
  }
  return least;
}

std::string MemoryKills::explain(int signal_number) {
  const bool was_killed = signal_number == SIGKILL;
  std::optional<Count>& count = own_ ? own_ : hosts_;
  if (!count || (!own_ && !was_killed)) return {};
  const auto now = read_kills(count->file);
  if (!now || *now <= count->killed) return {};
  const std::uint64_t num = *now - count->killed;
  const std::string what = concat("ran out: the kernel's OOM killer killed ", num,
                                  num == 1 ? " process " : " processes ");
  const std::string proof = concat(count->file, ": oom_kill ", count->killed, " → ", *now);
  if (!own_) {
    return concat("perhaps ", what, "of this host while it ran (", proof,
                  "; its own memory cgroup's count can't be read)");
  }
  const auto bytes = limit();
  const std::string where = concat("in its memory cgroup while it ran (", proof,
                                   bytes ? "; limit " + in_units(*bytes) : "", ")");
  if (!was_killed) return concat("perhaps ", what, where, ", but not the worker itself");
  ++count->killed;
  return what + where;
}

WorkerError parse_error_file(std::string_view json) {
  WorkerError result;
  auto object = parse_object(json);
  if (!object) return result;
  const boost::json::value root = std::move(*object);
  // The form is {"message": {"message": "Type: text", "extraInfo": {"py_callstack": …}}}, or
  // "message" is the text itself.
  result.message = json_at::text(root, "message");
  if (result.message.empty()) result.message = json_at::text(root, "message", "message");
  result.traceback =
      shortened_traceback(lines_of(json_at::text(root, "message", "extraInfo", "py_callstack")));
  result.fields = further_fields(root.as_object());
  return result;
}

std::string worker_error_file(const std::string& log_directory, const std::string& socket_directory,
                              int local_rank) {
  if (!log_directory.empty()) return LogTree::error_file(log_directory, local_rank);
  if (socket_directory.empty()) return {};
  return socket_directory + "/" + std::to_string(local_rank) + "-error.json";
}

std::string failed_operation_text(const OperationFailed& failed) {
  const std::string time = seconds_text(milliseconds(failed.waited_ms));
  if (failed.code == "protocol error" || failed.code == "peer lost") {
    return concat("in ", failed.operation, " for ", time, ": ", failed.message);
  }
  if (failed.missing.empty()) return concat(failed.operation, " did not end within ", time);
  const std::vector<int> others = all_but(failed.missing, failed.size);
  const std::string waiting = others.empty() ? "the others" : ranks_text(others);
  return concat(ranks_text(failed.missing), " never came to ", failed.operation, "; ", waiting,
                " waited in it for ", time);
}

bool is_worth_recording(const OperationFailed& failed) {
  return failed.code == "timeout" || failed.code == "protocol error";
}

std::string whereabouts_text(const std::vector<CommunicatorState>& communicators,
                             Clock::time_point now) {
  const CommunicatorState* oldest = nullptr;
  const CommunicatorState* last = nullptr;
  for (const CommunicatorState& each : communicators) {
    if (each.open && (oldest == nullptr || each.begun_ns < oldest->begun_ns)) oldest = &each;
    if (each.done > 0 && last == nullptr) last = &each;
  }
  if (oldest != nullptr) {
    const std::chrono::nanoseconds begun(static_cast<std::int64_t>(oldest->begun_ns));
    const auto since = std::chrono::duration_cast<milliseconds>(now.time_since_epoch() - begun);
    return concat("it was in ", text_of(*oldest->open), " for ",
                  seconds_text(std::max(milliseconds(0), since)));
  }
  if (last == nullptr) return "";
  return concat("it was in none; the last one that ended was #", last->done, " of communicator ",
                last->communicator);
}

void FailureDetails::begin_round(std::uint64_t round, const std::string& log_directory,
                                 const std::string& directory,
                                 std::shared_ptr<const RoundCgroup> cgroup) {
  cgroup_ = std::move(cgroup);
  round_ = round;
  error_files_.clear();
  for (int local_rank = 0; local_rank < num_workers_; ++local_rank) {
    error_files_.push_back(worker_error_file(log_directory, directory, local_rank));
  }
  log_directory_ = log_directory;
  directory_ = directory;
  memory_kills_.begin_round();
  failed_operations_.clear();
  records_.clear();
}

void FailureDetails::go_on(std::uint64_t round) {
  round_ = round;
  failed_operations_.clear();
  records_.clear();
}

std::string FailureDetails::error_file(std::uint64_t round, int local_rank) const {
  const auto index = static_cast<std::size_t>(local_rank);
  return round == round_ && index < error_files_.size() ? error_files_[index] : "";
}

WorkerError FailureDetails::read_error(std::uint64_t round, int local_rank) const {
  const std::function<WorkerError()> read = [path = error_file(round, local_rank)] {
    return read_error_file(path);
  };
  return writer_ ? writer_->call(read).value_or(WorkerError{}) : read();
}

void FailureDetails::operation_failed(int local_rank, const OperationFailed& failed) {
  failed_operations_.emplace(local_rank, failed);
}

bool FailureDetails::stays(const std::string& file) const {
  return !file.empty() && (directory_.empty() || !file.starts_with(directory_ + "/"));
}

std::vector<std::string> FailureDetails::flight_recorders() const {
  std::vector<std::string> files;
  for (const auto& [local_rank, file] : records_) {
    if (stays(file)) files.push_back(file);
  }
  return files;
}

// If the worker's own cgroup counts, the other counts can't be about this worker.
void FailureDetails::add_memory(membership::WorkerFailure& failure) {
  if (!cgroup_ || !cgroup_->counts_memory()) {
    failure.out_of_memory = memory_kills_.explain(failure.signal_number);
    return;
  }
  const WorkerMemory memory = cgroup_->memory_of(failure.local_rank);
  failure.out_of_memory = explain_end(memory, failure.signal_number);
  failure.memory_peak_bytes = memory.peak_bytes.value_or(0);
  failure.memory_limit_bytes = memory.limit_bytes.value_or(0);
}

std::string FailureDetails::pids_note(const membership::WorkerFailure& failure) const {
  const std::uint64_t refused = cgroup_ ? cgroup_->pids_refused(failure.local_rank) : 0;
  if (refused == 0) return {};
  return concat("its limit of processes and threads (--worker-pids) refused it one ", refused,
                refused == 1 ? " time" : " times");
}

void FailureDetails::add_to(membership::WorkerFailure& failure, std::uint64_t round,
                            const std::vector<CommunicatorState>& communicators) {
  const auto failed = failed_operations_.find(failure.local_rank);
  if (failed != failed_operations_.end()) {
    failure.operation = failed_operation_text(failed->second);
    if (stays(failed->second.file)) failure.flight_recorder = failed->second.file;
  } else {
    failure.operation = whereabouts_text(communicators, Clock::now());
  }
  failure.ended_at = std::time(nullptr);
  add_memory(failure);
  WorkerError left = read_error(round, failure.local_rank);
  if (failure.note.empty()) failure.note = std::move(left.message);
  if (failure.note.empty()) failure.note = pids_note(failure);
  if (failure.note.empty() && !failure.traceback.empty()) {
    failure.note = concat("its last exception: ", last_exception(failure.traceback));
  }
  const bool has_file = !left.traceback.empty();
  if (has_file) failure.traceback = std::move(left.traceback);
  failure.error_fields = std::move(left.fields);
  if (log_directory_.empty()) return;
  if (has_file) failure.error_file = error_file(round, failure.local_rank);
  const std::function<Paths()> look = [directory = log_directory_, rank = failure.local_rank] {
    return log_files(directory, rank);
  };
  failure.log_files = writer_ ? writer_->call(look).value_or(Paths()) : look();
}

}  // namespace ddprun::agent
