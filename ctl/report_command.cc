// SPDX-License-Identifier: Apache-2.0
#include "ctl/report_command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/unique_fd.h"
#include "ctl/report/charts.h"
#include "ctl/report/facts.h"
#include "ctl/report/facts_json.h"
#include "ctl/report/picture_text.h"
#include "ctl/report/read_record.h"
#include "ctl/report/report_page.h"
#include "ctl/standard_output.h"
#include "ctl/submit/run_program.h"

namespace ddprun::ctl {
namespace {

constexpr char kPictureProgram[] = "ddprun-chart-png";

// A job's id may be anything, a file's name not.
std::string file_name_of(const std::string& job) {
  constexpr std::size_t kMostBytes = 100;
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  std::string name = "report-" + job.substr(0, kMostBytes) + ".html";
  for (char& letter : name) {
    if (kPlain.find(letter) == std::string_view::npos) letter = '_';
  }
  return name;
}

int tell_unwritten(const std::string& path, int error) {
  std::fprintf(stderr, "ddprunctl: %s\n",
               one_line(concat("can't write ", path, ": ", errno_text(error))).c_str());
  return static_cast<int>(ExitCode::kOutputLost);
}

// errno, 0: all is written.
int write_whole(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    if (size < 0 && errno != EINTR) return errno;
    if (size > 0) text.remove_prefix(static_cast<std::size_t>(size));
  }
  return 0;
}

// Written beside it, then renamed: what was there stays until the new one is whole. What is no
// regular file (/dev/null, a pipe) is written to as it is. errno; 0: done.
int replace_file(const std::string& path, const std::string& text) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return EISDIR;
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return fd ? write_whole(fd.get(), text) : errno;
  }
  const std::string part = concat(path, ".", ::getpid(), ".part");
  UniqueFd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) return errno;
  int error = write_whole(fd.get(), text);
  // A file system may find out so late that it has no room.
  if (error == 0 && ::fsync(fd.get()) != 0) error = errno;
  if (error == 0 && ::rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(part.c_str());
  return error;
}

}  // namespace

ReportCommand::ReportCommand(CLI::App& app)
    : command_(app.add_subcommand("report",
                                  "Make a page of a finished job from the files that it left: "
                                  "ddprun --events and --report, "
                                  "train --json (docs/run-report.md).")) {
  command_->add_option("RUN", paths_, "The job's files, or directories with them")->required();
  command_->add_option("-o,--output", output_,
                       "The page's file; -: stdout (default: report-JOB.html, here)");
  command_->add_option("--png-dir", picture_folder_,
                       "Also each chart as a PNG, into this directory");
  command_->add_option("--job", job_, "Which job, where there are files of several");
  command_->add_flag("--json", json_, "The figures, one JSON object on stdout, and no page");
}

int ReportCommand::run() const {
  if (json_ && !output_.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--json is for stdout, and makes no page: without -o");
  }
  const std::string program = helper_program(kPictureProgram);
  if (!picture_folder_.empty() && ::access(program.c_str(), X_OK) != 0) {
    throw Error(ErrorCode::kUnsupported,
                concat("--png-dir: this ddprun was built without Cairo (", kPictureProgram,
                       " isn't there); the page has all charts"));
  }
  const report::Record record = report::read_record(paths_, job_);
  const report::Facts facts = report::facts_of(record);
  const std::vector<report::Chart> charts = report::charts_of(record, facts);
  if (!picture_folder_.empty()) {
    const int code = draw_pictures(charts);
    if (code != 0) return code;
  }
  if (json_) return print_or_tell(report::facts_json(record, facts));
  return write_page(record.job, report::report_page(record, facts, charts));
}

int ReportCommand::write_page(const std::string& job, const std::string& page) const {
  if (output_ == "-") return print_or_tell(page);
  const std::string path = output_.empty() ? file_name_of(job) : output_;
  const int error = replace_file(path, page);
  return error == 0 ? print_or_tell(path + "\n") : tell_unwritten(path, error);
}

int ReportCommand::draw_pictures(const std::vector<report::Chart>& charts) const {
  std::error_code error;
  std::filesystem::create_directories(picture_folder_, error);
  if (error) return tell_unwritten(picture_folder_, error.value());
  std::string text;
  for (const report::Chart& chart : charts) {
    text += report::picture_text(chart.id, report::picture_of(chart));
  }
  const submit::ProgramEnd end =
      submit::run_program({.argv = {helper_program(kPictureProgram), picture_folder_},
                           .input = text,
                           .environment = {}});
  if (end.status == 0) return 0;
  std::fprintf(stderr, "ddprunctl: --png-dir: %s\n", submit::failure_text(end).c_str());
  return end.status;
}

}  // namespace ddprun::ctl
