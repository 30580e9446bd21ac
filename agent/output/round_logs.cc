// SPDX-License-Identifier: Apache-2.0
#include "agent/output/round_logs.h"

#include <cerrno>
#include <functional>
#include <optional>
#include <utility>

#include "agent/console.h"
#include "agent/output/log_tree.h"
#include "common/error.h"

namespace ddprun::agent {

std::string begin_attempt(LogWriter& writer, const std::shared_ptr<LogTree>& tree,
                          int restart_count, int num_workers) {
  struct Outcome {
    std::string directory;
    std::optional<Error> error;
  };
  const std::function<Outcome()> begin = [tree, restart_count, num_workers]() -> Outcome {
    try {
      return {tree->begin_attempt(restart_count, num_workers), std::nullopt};
    } catch (const Error& error) {
      return {"", error};
    }
  };
  const std::optional<Outcome> outcome = writer.call(begin);
  if (!outcome) throw Error(ErrorCode::kSystem, "the log directory's file system doesn't answer");
  if (outcome->error) throw Error(*outcome->error);
  return outcome->directory;
}

RoundLogs::RoundLogs(Console& console, const OutputOptions& options, std::string attempt)
    : console_(console), options_(options), attempt_(std::move(attempt)) {
  const auto make = [this](OutputStream stream) -> std::unique_ptr<LogWriter::File> {
    if (options_.filters(stream).empty()) return nullptr;
    return console_.log_writer().open(LogTree::filtered_file(attempt_, stream), file_options());
  };
  filtered_stdout_ = make(OutputStream::kStdout);
  filtered_stderr_ = make(OutputStream::kStderr);
}

LogFileOptions RoundLogs::file_options() const {
  LogFileOptions options;
  options.max_bytes = options_.log_max_bytes;
  options.keep = options_.log_keep;
  return options;
}

std::string RoundLogs::path(int local_rank, OutputStream stream) const {
  return LogTree::log_file(attempt_, local_rank, stream);
}

std::unique_ptr<LogWriter::File> RoundLogs::copied(int local_rank, OutputStream stream) const {
  return console_.log_writer().open(path(local_rank, stream), file_options());
}

UniqueFd RoundLogs::direct(int local_rank, OutputStream stream) const {
  struct Opened {
    UniqueFd fd;
    int error = 0;
  };
  const std::function<Opened()> open = [path = path(local_rank, stream)] {
    Opened opened{open_log_file(path), 0};
    if (!opened.fd) opened.error = errno;
    return opened;
  };
  std::optional<Opened> opened = console_.log_writer().call(open);
  if (!opened) return {};
  if (!opened->fd) console_.log_writer().lost(path(local_rank, stream), opened->error, 0);
  return std::move(opened->fd);
}

LogWriter::File* RoundLogs::filtered(OutputStream stream) const {
  return stream == OutputStream::kStdout ? filtered_stdout_.get() : filtered_stderr_.get();
}

}  // namespace ddprun::agent
