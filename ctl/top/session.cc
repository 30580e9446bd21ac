// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/session.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <ctime>
#include <optional>
#include <utility>

#include "common/error.h"
#include "common/exit_codes.h"
#include "ctl/top/follower.h"
#include "ctl/top/history.h"
#include "ctl/top/picture.h"
#include "ctl/top/state.h"
#include "ctl/top/view.h"

namespace ddprun::top {
namespace {

// "03:11:40", local time.
std::string clock_text() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[16]{};
  std::strftime(text, sizeof(text), "%H:%M:%S", &local);
  return text;
}

class Session {
 public:
  explicit Session(const SessionOptions& options)
      : options_(options),
        signals_(io_),
        follower_(io_, options.endpoints, options.security,
                  {.said = [this](std::string_view frame) { said(frame); },
                   .lost = [this](const std::string& why) { lost(why); },
                   .refused =
                       [this](const Error& error) {
                         refused_ = error;
                         io_.stop();
                       }}) {
    view_.wanted = options.wanted;
    if (!options.wanted.empty()) view_.has_list = false;
    connection_.endpoint = harmless(options.name);
  }

  int run() {
    // Before ncurses, which handles those that nobody does.
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH}) {
      signals_.add(number);
    }
    terminal_.emplace(io_, options_.look,
                      Terminal::Handlers{.pressed = [this](int key) { pressed(key); },
                                         .drained = [this] { draw(); },
                                         .gone = [this] { end(exit_status_for_signal(SIGHUP)); }});
    wait_for_signal();
    draw();
    follower_.start();
    io_.run();
    terminal_.reset();
    if (refused_) throw Error(*refused_);
    return exit_code_;
  }

 private:
  void end(int exit_code) {
    exit_code_ = exit_code;
    io_.stop();
  }

  void wait_for_signal() {
    signals_.async_wait([this](boost::system::error_code error, int number) {
      if (error) return;
      if (number == SIGTSTP) {
        // As a program that knows nothing of it would be stopped.
        terminal_->leave();
        signals_.remove(SIGTSTP);
        ::raise(SIGTSTP);
        signals_.add(SIGTSTP);
      } else if (number == SIGCONT) {
        terminal_->leave();  // after SIGSTOP, which can't be noticed before
      } else if (number != SIGWINCH) {
        return end(exit_status_for_signal(number));
      }
      terminal_->forget();
      draw();
      wait_for_signal();
    });
  }

  void pressed(int key) {
    constexpr int kControlL = 'L' - '@';
    if (key == kControlL) terminal_->forget();
    if (!view_.press(key, state_, extent_)) return end(0);
    tell();
    draw();
  }

  // Which rank's output is looked at; again on each connection, and where it could not be said.
  void tell() {
    if (!connection_.is_live) return;
    const std::string wish = view_.wish(state_);
    if (wish != told_ && follower_.say(wish)) told_ = wish;
  }

  void said(std::string_view frame) {
    try {
      const json::value all = read_json(frame);
      const std::string type = text(all, "type");
      if (type == "end") return follower_.give_up(text(all, "why"));
      if (type == "state") {
        state_ = read_state(all);
        history_.take(state_);
        connection_.shown_at = clock_text();
        too_large_bytes_ = 0;
        view_.settle(state_);
      } else if (type == "too_large") {
        too_large_bytes_ = number(all, "bytes").value_or(0);
      } else if (type == "status") {
        state_.daemon = member(all, "status");
      } else if (type == "tail") {
        tail_ = all;
      }
    } catch (const Error& error) {
      return follower_.give_up(error.what());
    }
    connection_.is_live = true;
    connection_.why.clear();
    tell();
    draw();
  }

  void lost(const std::string& why) {
    connection_.is_live = false;
    connection_.why = harmless(why);
    told_ = kLookAway;
    draw();
  }

  // A terminal that is slow is shown the newest picture, and none in between.
  void draw() {
    if (terminal_->is_busy()) return;
    const bool has_state = !connection_.shown_at.empty();
    if (tail_ && (text(*tail_, "run_id") != view_.output_of || whole(*tail_, "rank") != view_.rank))
      tail_.reset();
    const Picture picture = screen_picture(
        {has_state ? &state_ : nullptr, &history_, too_large_bytes_, tail_ ? &*tail_ : nullptr},
        view_, connection_, terminal_->columns(), terminal_->rows());
    extent_ = picture.extent;
    terminal_->show(picture.lines);
  }

  const SessionOptions& options_;
  boost::asio::io_context io_{1};
  State state_;
  History history_;
  double too_large_bytes_ = 0;
  std::optional<json::value> tail_;  // of the rank that is looked at
  std::string told_ = kLookAway;     // the rendezvous, on this connection
  View view_;
  Extent extent_;
  Connection connection_;
  int exit_code_ = 0;
  std::optional<Error> refused_;
  boost::asio::signal_set signals_;
  std::optional<Terminal> terminal_;  // while run() has it
  Follower follower_;
};

}  // namespace

int run_session(const SessionOptions& options) { return Session(options).run(); }

}  // namespace ddprun::top
