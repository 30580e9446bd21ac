// SPDX-License-Identifier: Apache-2.0
// The launcher's end of the channel to one node's agent: the process that leads there (ssh, or the
// agent itself on this machine), and the messages over its standard input and output. io thread
// only.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/watched_child.h"
#include "launcher/hosts/channel_codec.h"
#include "launcher/hosts/heartbeat.h"

namespace ddprun::launcher {

struct NodeChannelEvents {
  // False: read no more until resume().
  std::function<bool(channel::FromAgent)> heard;
  // Once: no more can be heard. `fault`: what the agent did wrong, else empty; `wait_status`: of
  // the process; `said`: the end of what it wrote to stderr, or before its first message to stdout.
  struct Gone {
    int wait_status = 0;
    std::string fault;
    std::string said;
  };
  std::function<void(Gone)> gone;
};

class NodeChannel : public std::enable_shared_from_this<NodeChannel> {
 public:
  // `keep_alive`: once the agent has said hello, so much silence is its end; 0: none is. Throws as
  // WatchedChild::start.
  static std::shared_ptr<NodeChannel> start(boost::asio::io_context& io,
                                            std::vector<std::string> argv,
                                            std::vector<std::string> environment,
                                            std::chrono::milliseconds keep_alive,
                                            NodeChannelEvents events);

  void send(const channel::FromLauncher& message);
  void resume();
  // This process is about to stand still (Ctrl-Z): silence means nothing to the agent until it goes
  // on.
  void stand_still();
  // No event comes any more; the process is killed, by which the agent gets to know.
  void close();

 private:
  NodeChannel(boost::asio::io_context& io, std::chrono::milliseconds keep_alive,
              NodeChannelEvents events);
  void read_messages();
  void read_words();
  void write_more();
  bool take(std::size_t num_bytes);
  bool is_own(const channel::FromAgent& message);
  void await_pulse();
  void drain();
  void fail(const std::string& fault);
  void end();

  NodeChannelEvents events_;  // empty once closed or gone
  std::shared_ptr<agent::WatchedChild> process_;
  boost::asio::posix::stream_descriptor to_agent_;
  boost::asio::posix::stream_descriptor from_agent_;
  boost::asio::posix::stream_descriptor words_;  // stderr
  const std::chrono::milliseconds keep_alive_;
  Heartbeat heartbeat_{true};
  boost::asio::steady_timer pulse_timer_;
  channel::Decoder decoder_{true};
  std::array<char, 65536> buffer_;
  std::array<char, 4096> words_buffer_;
  std::string outgoing_;  // being written
  std::string next_;      // after it
  std::string said_;
  bool paused_ = false;
  bool reading_ = false;
  bool has_ended_ = false;  // the process
  int wait_status_ = 0;
};

}  // namespace ddprun::launcher
