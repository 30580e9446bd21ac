// SPDX-License-Identifier: Apache-2.0
#include "launcher/failure_report.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <memory>
#include <string_view>
#include <utility>

#include "agent/output/last_exception.h"
#include "agent/output/log_tree.h"
#include "common/bounded_call.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/regular_file.h"
#include "common/signal_names.h"
#include "common/text.h"
#include "common/wall_time.h"
#include "launcher/terminal_text.h"

namespace ddprun::launcher {
namespace {

constexpr char kRule[] = "------------------------------------------------------------\n";

std::string meaning_of(int exit_code) {
  switch (static_cast<ExitCode>(exit_code)) {
    case ExitCode::kUsage:
      return "bad usage or configuration";
    case ExitCode::kRendezvousUnreachable:
      return "rendezvous unreachable";
    case ExitCode::kRetryable:
      return "worth retrying";
    case ExitCode::kNoProgress:
      return "no progress, don't requeue";
    case ExitCode::kTimeLimit:
      return "time limit";
    default:
      return "";
  }
}

std::string others(const membership::JobEnd& verdict, const ReportContext& context) {
  std::string text = context.is_alone ? "none: it was the only worker"
                                      : "those that still ran were stopped because of it";
  const std::uint64_t restarts = verdict.rounds > 0 ? verdict.rounds - 1 : 0;
  if (context.max_restarts > 0) {
    text += "; restarts used: " + std::to_string(restarts) + " of " +
            std::to_string(context.max_restarts);
  }
  return text;
}

// As one_line(), but keeps tabs: for a line of output that another node sent.
std::string with_tabs(std::string_view output) {
  std::string text;
  for (;;) {
    const std::size_t tab = output.find('\t');
    text += one_line(output.substr(0, tab));
    if (tab == std::string_view::npos) return text;
    text += '\t';
    output.remove_prefix(tab + 1);
  }
}

// Returns "2026-11-22 03:15:07 UTC".
std::string utc(std::int64_t seconds) {
  const std::string text = utc_text(seconds, "%F %T UTC");
  return text.empty() ? "?" : text;
}

// Whether the output shows the traceback, from its first line to its last.
bool shows(const std::vector<std::string>& output, const std::vector<std::string>& traceback) {
  const auto first = std::find(output.begin(), output.end(), traceback.front());
  return std::find(first, output.end(), traceback.back()) != output.end();
}

constexpr std::size_t kMostMemoryBytes = 300;

bool names_memory(std::string_view exception) {
  const std::string_view name = exception.substr(0, exception.find(':'));
  if (ends_with_any(name, {"OutOfMemoryError", "MemoryError"})) return true;
  constexpr std::array<std::string_view, 9> kTexts = {"CUDA out of memory",
                                                      "HIP out of memory",
                                                      "CUDA error: out of memory",
                                                      "HIP error: out of memory",
                                                      "std::bad_alloc",
                                                      "c10::OutOfMemoryError",
                                                      "can't allocate memory",
                                                      "[Errno 12] Cannot allocate memory",
                                                      "RESOURCE_EXHAUSTED: Out of memory"};
  return std::any_of(kTexts.begin(), kTexts.end(), [&](std::string_view text) {
    return exception.find(text) != std::string_view::npos;
  });
}

std::string memory_line(const std::vector<std::string>& lines) {
  const std::string_view exception = agent::last_exception(lines);
  return names_memory(exception) ? std::string(exception.substr(0, kMostMemoryBytes)) : "";
}

// A file server may be dead, and nodes that don't answer for long are lost.
constexpr std::chrono::milliseconds kErrorFilePatience{2'000};

// Returns the problem; empty: none.
std::string write_error_file(const std::string& path, std::string_view text) {
  const RegularFile file = open_regular_file_to_append(path, 0666, O_TRUNC);
  if (!file.fd) return file.problem;
  return write_within(file.fd.get(), text, kErrorFilePatience) ? "" : errno_text(errno);
}

// Makes a failure as if a worker had failed for this reason. Readers of error files want a call
// stack, but ddprun's own would not help its user.
membership::WorkerFailure ddpruns_own(const membership::JobEnd& verdict) {
  membership::WorkerFailure failure;
  failure.note = verdict.reason.empty() ? "the job failed" : one_line(verdict.reason);
  failure.traceback = {"ddprun: " + failure.note};
  failure.exit_code = verdict.exit_code;
  failure.ended_at = std::time(nullptr);
  return failure;
}

// Returns the object `name` in `parent`, and makes it if there is none.
boost::json::object& object_in(boost::json::object& parent, const char* name) {
  boost::json::value& value = parent[name];
  return value.is_object() ? value.as_object() : value.emplace_object();
}

}  // namespace

std::string how_it_ended(const membership::WorkerFailure& failure) {
  if (failure.hung) return "ddprun: it made no progress";
  if (failure.signal_number == 0) return "exit code " + std::to_string(failure.exit_code);
  return "killed by " + signal_name(failure.signal_number) + " (signal " +
         std::to_string(failure.signal_number) + ")";
}

std::string failure_report(const membership::JobEnd& verdict, const ReportContext& context) {
  const bool was_spare = context.node_rank < 0 && verdict.rounds > 0 && !context.local;
  const std::string spare_text =
      "its workers never ran: it was a spare of job " + one_line(context.job_id);
  if (verdict.exit_code == 0) {
    return was_spare ? "ddprun: this node is not needed any more: " + spare_text +
                           ", which has succeeded\n"
                     : "";
  }
  std::string text;
  const auto line = [&text](const char* name, const std::string& value) {
    std::string label = name;
    label.resize(10, ' ');
    text += "  " + label + one_line(value) + "\n";
  };
  if (const auto& failure = verdict.first_failure) {
    const std::string rank = std::to_string(failure->global_rank);
    text += kRule + one_line(was_spare ? "job " + context.job_id : context.program) +
            " FAILED: the first failure was rank " + rank + "\n";
    line("host", failure->host + " (node rank " + std::to_string(failure->node_rank) + ")");
    line("rank", rank + " (local rank " + std::to_string(failure->local_rank) + ")");
    if (failure->pid > 0) line("pid", std::to_string(failure->pid));
    if (failure->ended_at > 0) line("time", utc(failure->ended_at));
    if (!failure->start.empty()) line("start", failure->start);
    line("ended by", how_it_ended(*failure));
    if (!failure->note.empty()) line("note", failure->note);
    if (!failure->operation.empty()) line("operation", failure->operation);
    if (const std::string memory = out_of_memory(*failure); !memory.empty()) line("memory", memory);
    if (!failure->gpu_errors.empty()) line("gpu", failure->gpu_errors);
    if (!failure->error_file.empty()) line("file", failure->error_file);
    if (!failure->traceback.empty() && !shows(failure->last_lines, failure->traceback)) {
      line("traceback", "of its last exception:");
      for (const std::string& place : failure->traceback)
        text += "    | " + with_tabs(place) + "\n";
    }
    if (failure->hung) {
      line("stack", failure->last_lines.empty() ? "not known" : "of its main thread:");
      for (const std::string& place : failure->last_lines)
        text += "    | " + with_tabs(place) + "\n";
    } else if (failure->last_lines.empty()) {
      line("output", "none that ddprun saw");
    } else {
      const std::size_t count = failure->last_lines.size();
      line("output", count == 1 ? "its last line:" : concat("its last ", count, " lines:"));
      for (const std::string& output : failure->last_lines)
        text += "    | " + with_tabs(output) + "\n";
    }
    const std::string of_all_ranks = concat("all ranks of ", failure->host, ": ");
    const char* name = "logs";
    for (const std::string& file : failure->log_files) line(std::exchange(name, ""), file);
    if (!failure->log_files.empty()) {
      line("", of_all_ranks + agent::LogTree::run_directory_of(failure->log_files.front()));
    }
    if (const std::string& file = failure->flight_recorder; !file.empty()) {
      line("recorder", file);
      line("", of_all_ranks + agent::LogTree::of_all_ranks(file));
    }
    line("others", others(verdict, context));
    for (const std::string& victim : verdict.victims) line("victim", victim);
  } else {
    text +=
        "ddprun: " + (verdict.reason.empty() ? "the job failed" : one_line(verdict.reason)) + "\n";
    if (context.local && verdict.rounds == 0) return text;  // nothing had begun: one line is enough
    text = kRule + text;
  }
  if (was_spare) line("this node", spare_text);
  const std::string meaning = verdict.first_failure ? "" : meaning_of(verdict.exit_code);
  text += "ddprun exits with " + std::to_string(verdict.exit_code) +
          (meaning.empty() ? "" : " (" + meaning + ")") + "\n" + kRule;
  return text;
}

std::string out_of_memory(const membership::WorkerFailure& failure) {
  if (!failure.out_of_memory.empty()) return failure.out_of_memory;
  const bool by_itself = failure.signal_number == 0 || failure.signal_number == SIGABRT;
  if (!by_itself || failure.hung) return {};
  const std::string line =
      failure.note.empty() ? memory_line(failure.last_lines) : memory_line({failure.note});
  return line.empty() ? "" : "ran out: " + line;
}

boost::json::object further_fields(const membership::WorkerFailure& failure) {
  return parse_object(failure.error_fields).value_or(boost::json::object());
}

std::string error_file_text(const membership::WorkerFailure& failure) {
  if (failure.traceback.empty()) return {};
  std::string stack;
  for (const std::string& line : failure.traceback) stack += line + "\n";
  boost::json::object root = further_fields(failure);
  boost::json::object& message = object_in(root, "message");
  message["message"] = failure.note;
  boost::json::object& extra = object_in(message, "extraInfo");
  extra["py_callstack"] = stack;
  extra["timestamp"] = std::to_string(failure.ended_at);
  message["errorCode"] = failure.signal_number != 0 ? -failure.signal_number : failure.exit_code;
  return written_json(root) + "\n";
}

std::string leave_error_file(const Environment& environment, const membership::JobEnd& verdict) {
  const auto path = find_variable(environment, env::kErrorFile);
  if (!path || verdict.exit_code == 0) return {};
  const std::string text = error_file_text(verdict.first_failure.value_or(ddpruns_own(verdict)));
  if (text.empty()) return {};
  const auto problem = std::make_shared<std::string>();  // the call owns it, too
  const auto write = [path = *path, text, problem] { *problem = write_error_file(path, text); };
  bool returned = true;
  try {
    returned = BoundedCall(write).returns_before(Deadline::after(kErrorFilePatience));
  } catch (const Error&) {
    write();  // no thread can be started
  }
  if (returned && problem->empty()) return {};
  return concat("the failure could not be written to ", *path, ": ",
                returned ? *problem : std::string("its file system doesn't answer"));
}

}  // namespace ddprun::launcher
