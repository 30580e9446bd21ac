// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/record_keeper.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "common/bounded_call.h"
#include "common/error.h"
#include "common/fd_text.h"
#include "common/log.h"
#include "common/quiet_thread.h"
#include "common/regular_file.h"
#include "common/utf8.h"

namespace ddprun {
namespace {

constexpr int kFormat = 1;
constexpr std::chrono::seconds kWriteTimeout{2};
constexpr std::size_t kMaxMessageBytes = 4096;
constexpr std::string_view kErrorName = "error.json";
constexpr std::string_view kRecorderName = "flight_recorder.json";

template <typename Period>
std::int64_t nanoseconds_of(Period since_epoch) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch).count();
}

std::string quoted(std::string_view text) {
  return "\"" + json_text(text, kMaxMessageBytes) + "\"";
}

std::string failure_object(const OperationFailure& failure) {
  return concat(R"({"code":)", quoted(failure.code), R"(,"message":)", quoted(failure.message),
                R"(,"communicator":)", failure.facts.communicator, R"(,"sequence":)",
                failure.facts.sequence, R"(,"waited_ms":)", failure.waited.count(),
                R"(,"missing_ranks":[)", listed(failure.missing, ","), "]}");
}

// Converts a monotonic time to wall time; "null" if it is not set.
std::string time_value(std::int64_t monotonic_ns, std::int64_t offset_ns) {
  return monotonic_ns == 0 ? "null" : std::to_string(monotonic_ns + offset_ns);
}

std::string operation_object(const FlightRecorder::Entry& entry, std::int64_t offset_ns) {
  const OperationFacts& facts = entry.facts;
  const bool is_message =
      facts.kind == CollectiveKind::kSend || facts.kind == CollectiveKind::kRecv;
  const auto rank_or_null = [&](bool has) {
    return has ? std::to_string(facts.root) : std::string("null");
  };
  return concat(R"({"number":)", entry.number, R"(,"communicator":)", facts.communicator,
                R"(,"sequence":)", facts.sequence, R"(,"kind":")", kind_name(facts.kind),
                R"(","op":)", has_op(facts.kind) ? quoted(op_name(facts.op)) : "null",
                R"(,"root":)", rank_or_null(has_root(facts.kind)), R"(,"peer":)",
                rank_or_null(is_message), R"(,"dtype":")", dtype_name(facts.dtype), R"(","count":)",
                facts.count, R"(,"bytes":)", size_bytes_of(facts), R"(,"state":")",
                to_string(entry.state), R"(","scheduled_ns":)",
                time_value(entry.scheduled_ns, offset_ns), R"(,"started_ns":)",
                time_value(entry.started_ns, offset_ns), R"(,"ended_ns":)",
                time_value(entry.ended_ns, offset_ns), R"(,"device_ns":)",
                time_value(entry.on_device.count(), 0), "}");
}

// Returns an errno; 0: done.
int write_and_rename(const std::string& path, const std::string& text) {
  const NewFile file = make_new_file(path + ".new-", 0644);
  if (!file.fd) return errno;
  int error = write_text(file.fd.get(), text);
  if (error == 0 && ::rename(file.path.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return 0;
  ::unlink(file.path.c_str());
  return error;
}

}  // namespace

std::string flight_recorder_file(const WorkerEnv& env) {
  if (env.num_recorded == 0) return "";
  if (!env.recorder_dir.empty()) return concat(env.recorder_dir, "/rank_", env.rank, ".json");
  if (env.error_file.empty()) return "";
  if (!env.error_file.ends_with(kErrorName)) return env.error_file + "." + kRecorderName.data();
  return env.error_file.substr(0, env.error_file.size() - kErrorName.size()) + kRecorderName.data();
}

std::string flight_recorder_json(const FlightRecorder& recorder, const WorkerEnv& env,
                                 const OperationFailure* failure) {
  const std::int64_t wall = nanoseconds_of(std::chrono::system_clock::now().time_since_epoch());
  const std::int64_t offset = wall - nanoseconds_of(Clock::now().time_since_epoch());
  std::string text =
      concat(R"({"version":)", kFormat, R"(,"rank":)", env.rank, R"(,"world_size":)",
             env.world_size, R"(,"node_rank":)", env.node_rank, R"(,"round":)", env.round,
             R"(,"pid":)", ::getpid(), R"(,"written_ns":)", wall, R"(,"failure":)",
             failure ? failure_object(*failure) : "null", ",\n\"communicators\":[");
  const char* separator = "";
  std::size_t number = 0;
  for (const auto& communicator : recorder.communicators()) {
    text += concat(separator, R"({"number":)", number++, R"(,"backend":)",
                   quoted(communicator.backend), R"(,"size":)", communicator.size, "}");
    separator = ",";
  }
  text += concat("],\n\"capacity\":", recorder.capacity(), ",\n\"operations\":[");
  separator = "\n";
  for (const FlightRecorder::Entry& entry : recorder.entries()) {
    text += separator + operation_object(entry, offset);
    separator = ",\n";
  }
  return text + "\n]}\n";
}

bool write_flight_recorder(const std::string& path, const std::string& text) {
  const auto error = std::make_shared<std::atomic<int>>(0);  // shared with the call
  const bool returned = returns_before(Deadline::after(kWriteTimeout), [path, text, error] {
    *error = write_and_rename(path, text);
  });
  if (returned && *error == 0) return true;
  log_warning("the flight recorder can't be written to ", path, ": ",
              returned ? errno_text(*error) : std::string("the file system does not answer"));
  return false;
}

RecordKeeper::RecordKeeper(const WorkerEnv& env, WorkerProgress& progress)
    : env_(env), progress_(progress), file_(flight_recorder_file(env)) {
  progress_.on_operation_failed([this](const OperationFailure& failure) { failed(failure); });
}

RecordKeeper::~RecordKeeper() {
  progress_.on_operation_failed(nullptr);
  if (!thread_.joinable()) return;
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void RecordKeeper::serve(const std::shared_ptr<AgentChannel>& agent) {
  {
    const std::lock_guard lock(mutex_);
    agent_ = agent;
  }
  if (file_.empty()) return;
  try {
    stop_.reset(::eventfd(0, EFD_CLOEXEC));
    if (!stop_) throw_system_error("eventfd", errno);
    thread_ = start_quiet_thread("ddprun-record", [this, agent] { wait_for_requests(*agent); });
    agent->keeps_record();
  } catch (const Error& error) {
    log_warning("rank ", env_.rank,
                ": the agent can't ask for the flight recorder: ", error.what());
  }
}

// Called on the thread that found the failure. Tells the agent first: the file may take a while.
void RecordKeeper::failed(const OperationFailure& failure) {
  std::shared_ptr<AgentChannel> agent;
  {
    const std::lock_guard lock(mutex_);
    agent = agent_;
  }
  if (agent) agent->operation_failed(failure, file_);
  if (file_.empty()) return;
  const std::lock_guard lock(file_mutex_);
  has_failure_ = true;
  is_written_ =
      write_flight_recorder(file_, flight_recorder_json(progress_.recorder(), env_, &failure));
  if (agent) agent->recorded(is_written_ ? file_ : "", 0);
}

void RecordKeeper::wait_for_requests(AgentChannel& agent) {
  while (const auto request = agent.await_request(stop_.get())) {
    const std::lock_guard lock(file_mutex_);
    if (!has_failure_) {
      is_written_ =
          write_flight_recorder(file_, flight_recorder_json(progress_.recorder(), env_, nullptr));
    }
    agent.recorded(is_written_ ? file_ : "", *request);
  }
}

}  // namespace ddprun
