// SPDX-License-Identifier: Apache-2.0
// `ddprun --from-channel`: one node's agent for a launcher elsewhere. Gets its job over standard
// input, runs ddprun with it as a child, and passes on what that says. It ends with the channel,
// and ddprun with it (docs/ssh.md). io thread only.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "agent/watched_child.h"
#include "common/environment.h"
#include "launcher/hosts/channel_codec.h"
#include "launcher/hosts/child_input.h"
#include "launcher/hosts/heartbeat.h"

namespace ddprun::launcher {

class ChannelAgent {
 public:
  // `environment`: of this process.
  explicit ChannelAgent(Environment environment);
  ~ChannelAgent();

  // Until ddprun has ended and that was said, or nobody listens any more. Returns the exit status.
  int run();

 private:
  struct Stream {  // of ddprun
    Stream(boost::asio::io_context& io, char which) : pipe(io), type(which) {}
    boost::asio::posix::stream_descriptor pipe;
    const char type;  // 'o', 'e', or 'w': its last words
    bool reading = false;
    std::array<char, channel::kMostOutputBytes> buffer;
  };

  void read_commands();
  void obey(const channel::FromLauncher& message);
  void start(const channel::Job& job);
  std::vector<UniqueFd> serve(const std::string& host, std::string& endpoint);
  void refuse(const std::string& why);
  void read_all();
  void read(Stream& stream);
  void take_words(std::string_view words);
  void say(const channel::FromAgent& message);
  void write_more();
  void on_child_end(int wait_status);
  void await_output();
  void close_streams();
  bool is_behind() const;
  void say_end_when_read();
  void answer(const channel::Pulse& pulse);
  void await_pulse();
  void lose_channel();
  void end_child();

  const Environment environment_;
  boost::asio::io_context io_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer patience_;
  boost::asio::steady_timer pulse_timer_;
  Heartbeat heartbeat_{false};  // the launcher's
  boost::asio::posix::stream_descriptor commands_;
  boost::asio::posix::stream_descriptor answers_;
  channel::Decoder decoder_{false};
  std::array<char, 65536> buffer_;

  std::string outgoing_;  // being written
  std::string next_;      // after it
  bool channel_lost_ = false;

  std::shared_ptr<agent::WatchedChild> child_;  // null: none yet, or it has ended
  ChildInput stdin_;
  Stream stdout_;
  Stream stderr_;
  Stream words_;
  std::string last_words_;
  bool input_was_wanted_ = false;
  UniqueFd lifeline_;  // of ddprun: it leaves the job when this is closed
  int stop_seconds_ = 0;
  bool has_job_ = false;
  bool child_ended_ = false;
  bool end_said_ = false;
  channel::End end_;
};

}  // namespace ddprun::launcher
