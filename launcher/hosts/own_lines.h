// SPDX-License-Identifier: Apache-2.0
// Shows the lines that each node's ddprun prints for itself ("[ddprun] …" on stderr) on one
// console. A line gets the host's name. If several nodes print the same line, it is shown once.
// Pure.
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
  // `names`: the nodes' names.
  explicit OwnLines(std::vector<std::string> names);

  // Takes bytes that `node` wrote to stderr, and returns those to show. Holds back an unfinished
  // line of ddprun's, up to kMostHeldBytes. Passes on everything else unchanged.
  std::string pass(int node, std::string_view bytes);
  // Called when the node writes no more: returns what was held back.
  std::string end(int node);

  static constexpr std::size_t kMostHeldBytes = 8192;
  // After this many different lines, an old line counts as new again.
  static constexpr std::size_t kMostRemembered = 1000;

 private:
  struct Node {
    std::string name;
    std::string held;      // the beginning of a line that may be ddprun's own
    bool in_line = false;  // the last line is someone else's, and unfinished
  };
  std::string shown(int index, std::string_view line);

  std::vector<Node> nodes_;
  // Text → how often each node printed it (index = node), and how often it was shown. A node that
  // prints it again has news.
  struct Said {
    std::vector<int> times;
    int num_shown = 0;
  };
  std::map<std::string, Said, std::less<>> said_;
  std::deque<std::string> order_;  // keys of said_, the oldest first
};

}  // namespace ddprun::launcher
