// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/session.h"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <csignal>
#include <optional>
#include <utility>

#include "common/error.h"
#include "common/exit_codes.h"
#include "ctl/top/clock_text.h"
#include "ctl/top/follower.h"
#include "ctl/top/history.h"
#include "ctl/top/keys.h"
#include "ctl/top/layout.h"
#include "ctl/top/looking.h"
#include "ctl/top/screen.h"
#include "ctl/top/state.h"
#include "ctl/top/terminal.h"
#include "ctl/top/view.h"

namespace ddprun::top {
namespace {

class Session {
 public:
  explicit Session(const SessionOptions& options)
      : screen_(options.look),
        signals_(io_),
        terminal_(io_, STDIN_FILENO, STDOUT_FILENO,
                  {.typed = [this](std::string_view bytes) { typed(bytes); },
                   .drained = [this] { drained(); },
                   .gone = [this] { end(exit_status_for_signal(SIGHUP)); }}),
        follower_(io_, options.endpoints, options.security,
                  {.said = [this](std::string_view frame) { said(frame); },
                   .lost = [this](const std::string& why) { lost(why); },
                   .refused =
                       [this](const Error& error) {
                         refused_ = error;
                         io_.stop();
                       }}) {
    view_.wanted = options.wanted;
    if (!options.wanted.empty()) view_.focus = Focus::kJob;
    connection_.endpoint = options.name;
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH}) {
      signals_.add(number);
    }
  }

  int run() {
    wait_for_signal();
    terminal_.enter();
    follower_.start();
    io_.run();
    terminal_.leave();
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
        stop();
      } else if (number == SIGCONT) {
        go_on();
      } else if (number == SIGWINCH) {
        screen_.forget();
        draw();
      } else {
        return end(exit_status_for_signal(number));
      }
      wait_for_signal();
    });
  }

  // As a program that knows nothing of it would be stopped: the shell has its terminal meanwhile.
  void stop() {
    terminal_.leave();
    signals_.remove(SIGTSTP);
    ::raise(SIGTSTP);
    signals_.add(SIGTSTP);
    go_on();
  }

  // Also after SIGSTOP, which can't be noticed before.
  void go_on() {
    terminal_.leave();
    terminal_.enter();
    screen_.forget();
    draw();
  }

  void typed(std::string_view bytes) {
    static const State kNone;
    for (const Key key : keys_.take(bytes)) {
      if (key == Key::kRedraw) screen_.forget();
      if (!press(view_, key, state_ ? *state_ : kNone, extent_)) return end(0);
    }
    tell();
    draw();
  }

  // Which rank's output is looked at; again on each connection, and where it could not be said.
  void tell() {
    if (!state_ || connection_.kind != Connection::Kind::kLive) return;
    const std::string wish = tail_wish(view_, *state_);
    if (!is_shown(tail_)) tail_.reset();
    if (wish != told_ && follower_.say(wish)) told_ = wish;
  }

  // Whether it is of the rank that is looked at.
  bool is_shown(const std::optional<Tail>& tail) const {
    return tail && view_.has_output && view_.looked_at && tail->rank == view_.looked_at->rank &&
           tail->run_id == view_.looked_at->run_id;
  }

  void said(std::string_view frame) {
    Message message;
    try {
      message = read_message(frame);
    } catch (const Error& error) {
      return follower_.give_up(error.what());
    }
    if (message.kind == Message::Kind::kEnd) return follower_.give_up(message.why);
    connection_.kind = Connection::Kind::kLive;
    connection_.why.clear();
    if (message.kind == Message::Kind::kState) {
      state_ = std::move(message.state);
      history_.take(*state_);
      connection_.shown_at = clock_text(std::chrono::system_clock::now());
      too_large_bytes_ = 0;
      settle(view_, *state_);
    } else if (message.kind == Message::Kind::kTooLarge) {
      too_large_bytes_ = message.num_bytes;
    } else if (message.kind == Message::Kind::kStatus && state_) {
      state_->daemon = std::move(message.state.daemon);
    } else if (message.kind == Message::Kind::kTail) {
      tail_ = std::move(message.tail);
    }
    tell();
    draw();
  }

  void lost(const std::string& why) {
    connection_.kind =
        connection_.shown_at.empty() ? Connection::Kind::kConnecting : Connection::Kind::kLost;
    connection_.why = why;
    told_ = kLookAway;
    draw();
  }

  void drained() {
    if (std::exchange(is_stale_, false)) draw();
  }

  // A terminal that is slow is shown the newest picture, and none in between.
  void draw() {
    if (!terminal_.is_entered()) return;
    if (terminal_.is_writing()) {
      is_stale_ = true;
      return;
    }
    const Terminal::Size size = terminal_.size();
    const Known known{state_ ? &*state_ : nullptr, &history_, too_large_bytes_,
                      is_shown(tail_) ? &*tail_ : nullptr};
    Picture picture = screen_picture(known, view_, connection_, size.columns, size.rows);
    extent_ = picture.extent;
    terminal_.write(screen_.changes(picture.lines, size.columns));
  }

  boost::asio::io_context io_{1};
  std::optional<State> state_;
  History history_;
  double too_large_bytes_ = 0;
  std::optional<Tail> tail_;      // that came last
  std::string told_ = kLookAway;  // the rendezvous, on this connection
  View view_;
  Extent extent_;
  Connection connection_;
  KeyReader keys_;
  Screen screen_;
  bool is_stale_ = true;  // what is drawn is not the newest
  int exit_code_ = 0;
  std::optional<Error> refused_;
  boost::asio::signal_set signals_;
  Terminal terminal_;
  Follower follower_;
};

}  // namespace

int run_session(const SessionOptions& options) { return Session(options).run(); }

}  // namespace ddprun::top
