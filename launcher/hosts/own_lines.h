// SPDX-License-Identifier: Apache-2.0
// Shows on one console what each node's ddprun says for itself ("[ddprun] …" on stderr). A line has
// the host's name, and is shown once if several say it. Pure: bytes in, bytes out.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

class OwnLines {
 public:
  // `names`: of the nodes.
  explicit OwnLines(std::vector<std::string> names);

  // Takes bytes that `node` wrote to stderr; returns those to show. An unfinished line of ddprun's
  // own is kept back, at most kMostHeldBytes of it; all else is passed on unchanged.
  std::string pass(int node, std::string_view bytes);
  // The node writes no more: what was kept back.
  std::string end(int node);

  static constexpr std::size_t kMostHeldBytes = 8192;
  // A line that was said so many different lines ago is new again.
  static constexpr std::size_t kMostRemembered = 1000;

 private:
  struct Node {
    std::string name;
    std::string held;      // the begin of a line that may be ddprun's own
    bool in_line = false;  // of somebody else
  };
  std::string shown(int index, std::string_view line);

  std::vector<Node> nodes_;
  // Text → how often each node said it (index = node), and how often it was shown. A node that says
  // it for the second time has news.
  struct Said {
    std::vector<int> times;
    int num_shown = 0;
  };
  std::map<std::string, Said, std::less<>> said_;
  std::deque<std::string> order_;  // keys of said_, the oldest first
};

}  // namespace ddprun::launcher
