// SPDX-License-Identifier: Apache-2.0
// `ddprunctl top` shows the jobs of a rendezvous as they run, in a terminal (docs/top.md).
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "common/error.h"
#include "common/text.h"
#include "ctl/commands.h"
#include "ctl/endpoint_flags.h"
#include "ctl/top/picture.h"
#include "ctl/top/session.h"

namespace ddprun::ctl {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Judges by the locale's name. The locale need not be installed: the terminal must support UTF-8.
bool is_utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view value = variable(name);
    if (value.empty()) continue;
    return ::strcasestr(value.data(), "utf-8") || ::strcasestr(value.data(), "utf8");
  }
  return false;
}

// Returns the terminal's width, or $COLUMNS.
std::size_t columns_of_stdout() {
  constexpr std::size_t kUsual = 100, kLeast = 40, kMost = 1'000;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const std::string_view given = variable("COLUMNS");
  std::size_t columns = 0;
  const auto read = std::from_chars(given.data(), given.data() + given.size(), columns);
  return read.ec == std::errc() && columns > 0 ? std::clamp(columns, kLeast, kMost) : kUsual;
}

class TopCommand : public Command {
 public:
  explicit TopCommand(CLI::App& app) : Command(app, "top"), endpoint_(*command_) {
    command_->add_option("JOB", job_, "Its run id (--rdzv-id); without: the first one, or a list");
    command_->add_flag("--once", once_,
                       "One picture, as text, and the end; also without a terminal");
    command_->add_flag("--plain", plain_, "ASCII alone, and no colours");
  }

  // Returns the exit code. Throws as EndpointFlags::fetch_page(). Throws Error(kInvalidArgument) if
  // one picture was asked for and JOB isn't there.
  int run() const override {
    top::use_wide_characters();
    const bool has_unicode = !plain_ && is_utf8_locale();
    const std::string_view kind = variable("TERM");
    const bool is_screen = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1 &&
                           !kind.empty() && kind != "dumb";
    if (once_ || !is_screen) return print_once(has_unicode);
    const bool has_color = !plain_ && variable("NO_COLOR").empty();
    return top::run_session({.endpoints = endpoint_.endpoints(),
                             .security = endpoint_.security(),
                             .name = endpoint_.text(),
                             .wanted = job_,
                             .has_unicode = has_unicode,
                             .has_color = has_color});
  }

 private:
  int print_once(bool has_unicode) const {
    const top::json::value status = top::read_json(endpoint_.fetch_page("/v1/status"));
    const top::json::value jobs = top::read_json(endpoint_.fetch_page("/v1/jobs"));
    top::Known known{.state = top::read_state({{"status", status}, {"jobs", jobs}}),
                     .is_live = true,
                     .endpoint = top::harmless(endpoint_.text()),
                     .shown_at = "now"};
    const top::View view{.wanted = job_, .has_list = true};
    const top::Job* job = view.chosen(known.state);
    if (!job_.empty() && (job == nullptr || job->run_id != job_)) {
      top::Lines names;
      for (const top::Job& each : known.state.jobs) names.push_back(each.run_id);
      throw Error(ErrorCode::kInvalidArgument,
                  concat("no job \"", job_, "\" is at ", endpoint_.text(), ": it has ",
                         names.empty() ? "no jobs" : top::names_text(names, 8)));
    }
    top::remember(known.history, known.state);
    std::string all;
    for (const std::string& line : top::paper_picture(known, view, columns_of_stdout())) {
      all += top::without_styles(has_unicode ? line : top::in_ascii(line)) + "\n";
    }
    return print_or_tell(all);
  }

  EndpointFlags endpoint_;
  std::string job_;
  bool once_ = false, plain_ = false;
};

}  // namespace

std::unique_ptr<Command> make_top_command(CLI::App& app) {
  return std::make_unique<TopCommand>(app);
}

}  // namespace ddprun::ctl
