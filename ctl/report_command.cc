// SPDX-License-Identifier: Apache-2.0
// `ddprunctl report` makes a page, pictures and figures from a finished job's files.
// docs/run-report.md.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "common/byte_text.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/fd_text.h"
#include "common/regular_file.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "ctl/commands.h"
#include "ctl/report/charts.h"
#include "ctl/report/facts.h"
#include "ctl/report/read_record.h"
#include "ctl/report/report_page.h"
#include "ctl/submit/run_program.h"

namespace ddprun::ctl {
namespace {

// The first installed one of these draws the pictures.
constexpr std::array kBrowsers = {"chromium-headless-shell", "chromium", "chromium-browser",
                                  "google-chrome"};

// Makes a file's name from a job's id, which may have any characters.
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
  say(concat("can't write ", path, ": ", errno_text(error)));
  return static_cast<int>(ExitCode::kOutputLost);
}

// Writes a new file and renames it: the old one stays until the new one is complete. Writes
// directly to a path that is no regular file (/dev/null, a pipe). Returns errno; 0: done.
int replace_file(const std::string& path, const std::string& text) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return EISDIR;
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    const UniqueFd fd = open_to_write(path, O_WRONLY | O_CLOEXEC, 0);
    return fd ? write_text(fd.get(), text) : errno;
  }
  const NewFile part = make_new_file(path + ".part-", 0666);
  if (!part.fd) return errno;
  int error = write_text(part.fd.get(), text);
  // Some file systems report only now that they have no room.
  if (error == 0 && ::fsync(part.fd.get()) != 0) error = errno;
  if (error == 0 && ::rename(part.path.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(part.path.c_str());
  return error;
}

// A folder for the browser's page and profile, removed afterwards.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = (std::filesystem::temp_directory_path() / "ddprun-report-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) throw_system_error("can't make " + path_, errno);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Returns the document that a browser makes of the page, opened with #pictures. page/report.js
// describes its lines.
submit::ProgramEnd drawn_by_browser(const std::string& page) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/page.html";
  if (const int error = replace_file(path, page)) throw_system_error("can't write " + path, error);
  std::vector<std::string> argv{"",
                                "--headless",
                                "--disable-gpu",
                                "--disable-dev-shm-usage",
                                "--no-first-run",
                                "--window-size=1280,900",
                                "--virtual-time-budget=60000",
                                "--user-data-dir=" + folder.path() + "/profile",
                                "--dump-dom",
                                "file://" + path + "#pictures"};
  // Chromium has no sandbox for root. The page is our own, and its policy forbids loading anything
  // else.
  if (::geteuid() == 0) argv.insert(argv.begin() + 1, "--no-sandbox");
  for (const char* browser : kBrowsers) {
    argv.front() = browser;
    try {
      return submit::run_program({.argv = argv, .input = {}, .environment = {}});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
    }
  }
  throw Error(ErrorCode::kUnsupported,
              concat("--png-dir: no Chromium here (", kBrowsers[0], ", ", kBrowsers[1],
                     " or google-chrome) to draw with; the page has all charts"));
}

class ReportCommand : public Command {
 public:
  explicit ReportCommand(CLI::App& app) : Command(app, "report") {
    command_->add_option("RUN", paths_, "The job's files, or directories with them")->required();
    command_->add_option("-o,--output", output_,
                         "The page's file; -: stdout (default: report-JOB.html, here)");
    command_->add_option("--png-dir", picture_folder_,
                         "Also each chart as a PNG, into this directory, drawn by Chromium");
    command_->add_option("--job", job_, "Which job, where there are files of several");
    command_->add_flag("--json", json_, "The figures, one JSON object on stdout, and no page");
  }

  // Returns the exit code. Throws Error: kInvalidArgument if there is no record, or several jobs';
  // kUnsupported if no pictures can be made here. Error(kSystem) names what fails while it is read.
  int run() const override {
    if (json_ && !output_.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--json is for stdout, and makes no page: without -o");
    }
    const report::Record record = report::read_record(paths_, job_);
    const report::Facts facts = report::facts_of(record);
    const std::vector<report::Chart> charts = report::charts_of(record, facts);
    const std::string page = report::report_page(record, facts, charts);
    if (!picture_folder_.empty()) {
      const int code = draw_pictures(page);
      if (code != 0) return code;
    }
    if (json_) return print_or_tell(report::facts_json(record, facts));
    return write_page(record.job, page);
  }

 private:
  int write_page(const std::string& job, const std::string& page) const {
    if (output_ == "-") return print_or_tell(page);
    const std::string path = output_.empty() ? file_name_of(job) : output_;
    const int error = replace_file(path, page);
    return error == 0 ? print_or_tell(path + "\n") : tell_unwritten(path, error);
  }

  int draw_pictures(const std::string& page) const {
    const submit::ProgramEnd end = drawn_by_browser(page);
    constexpr std::string_view kBegin = "<pre id=\"pictures\">";
    const std::size_t begin = end.out.find(kBegin);
    if (end.status != 0 || begin == std::string::npos) {
      throw Error(ErrorCode::kUnsupported,
                  "--png-dir: the browser drew nothing: " + submit::failure_text(end));
    }
    std::error_code error;
    std::filesystem::create_directories(picture_folder_, error);
    if (error) return tell_unwritten(picture_folder_, error.value());
    std::istringstream lines(end.out.substr(begin + kBegin.size()));
    for (std::string name, base64; lines >> name >> base64;) {
      const std::optional<std::string> picture = from_base64(base64);
      if (!picture) break;  // after the last one
      const std::string path = concat(picture_folder_, "/", name, ".png");
      if (const int code = replace_file(path, *picture)) return tell_unwritten(path, code);
    }
    return 0;
  }

  std::vector<std::string> paths_;
  std::string job_, output_, picture_folder_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_report_command(CLI::App& app) {
  return std::make_unique<ReportCommand>(app);
}

}  // namespace ddprun::ctl
