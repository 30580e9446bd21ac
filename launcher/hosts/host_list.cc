// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_list.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "common/endpoint.h"
#include "common/log.h"
#include "common/nodelist.h"
#include "common/trimmed.h"

namespace ddprun::launcher {
namespace {

constexpr int kMostSlots = 65'536;
constexpr std::string_view kBlanks = " \t";

std::string quoted(std::string_view text) {
  constexpr std::size_t kMost = 80;
  const std::string shown(text.substr(0, kMost));
  return "\"" + one_line(shown) + (text.size() > kMost ? "…\"" : "\"");
}

// "" and the number in `slots`, or what is wrong.
std::string read_slots(std::string_view text, const char* what, int& slots) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end || value < 0 || value > kMostSlots) {
    return std::string(what) + " " + quoted(text) + ": wants a number from 1 to " +
           std::to_string(kMostSlots);
  }
  if (value == 0) return std::string(what) + " 0: a host without room is to be left out";
  slots = value;
  return {};
}

// "user@n[01-04]" → the names. nullopt: doesn't parse.
std::optional<std::vector<std::string>> expand(std::string_view text) {
  const std::size_t at = text.rfind('@');
  const std::string user(at == std::string_view::npos ? "" : text.substr(0, at + 1));
  if (at != std::string_view::npos) text.remove_prefix(at + 1);
  std::optional<std::vector<std::string>> names;
  if (text.starts_with('[') && text.ends_with(']') && text.find(':') != std::string_view::npos) {
    names = {std::string(text.substr(1, text.size() - 2))};  // an IPv6 address
  } else if (text.find(',') == std::string_view::npos || text.find('[') < text.find(',')) {
    names = expand_nodelist(text);
  }
  if (!names) return std::nullopt;
  for (std::string& name : *names) {
    // What begins with "-" would be an option to ssh.
    if (!is_host(name) || name.starts_with('-') || user.starts_with('-')) return std::nullopt;
    name.insert(0, user);
  }
  return names;
}

// Where the ":" before the slots is; npos: there is none.
std::size_t slots_at(std::string_view item) {
  const std::size_t colon = item.rfind(':');
  const std::size_t bracket = item.rfind(']');
  return bracket != std::string_view::npos && colon != std::string_view::npos && colon < bracket
             ? std::string_view::npos
             : colon;
}

bool is_user(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char letter) {
    return letter > ' ' && letter != 0x7f && letter != '\'' && letter != '"' && letter != '/';
  });
}

class ListReader {
 public:
  // One host or range, maybe with ":SLOTS"; `slots` (0: none) is what came beside it.
  void add(std::string_view item, int slots, const std::string& where) {
    const std::size_t colon = slots_at(item);
    std::string_view name = item.substr(0, colon);
    if (colon != std::string_view::npos) {
      int told = 0;
      if (std::string why = read_slots(item.substr(colon + 1), "slots", told); !why.empty()) {
        return refuse(where, quoted(item) + ": " + why);
      }
      if (slots != 0 && slots != told) {
        return refuse(where, quoted(item) + " has two numbers of slots");
      }
      slots = told;
    }
    const auto names = is_user(name) ? expand(name) : std::nullopt;
    if (!names) {
      return refuse(where, quoted(item) + " is no host and no range of hosts (n1, n[01-04], " +
                               "user@n1, [IPV6])");
    }
    for (const std::string& each : *names) {
      Host host{.name = each, .slots = slots, .where = where};
      const auto [first, is_new] = seen_.try_emplace(std::string(host.address()), where);
      if (!is_new) {
        return refuse(where, host.name + " is named a second time (first: " + first->second + ")");
      }
      list_.hosts.push_back(std::move(host));
    }
    if (list_.hosts.size() > kMostHosts) {
      refuse(where, "more than " + std::to_string(kMostHosts) + " hosts");
    }
  }

  void note(const std::string& text) {
    if (std::find(list_.notes.begin(), list_.notes.end(), text) == list_.notes.end()) {
      list_.notes.push_back(text);
    }
  }
  void refuse(const std::string& where, const std::string& why) {
    if (list_.problem.empty()) list_.problem = where + ": " + why;
  }
  bool is_refused() const { return !list_.problem.empty(); }

  HostList finish(const std::string& origin) {
    if (!is_refused() && list_.hosts.empty()) refuse(origin, "names no host");
    return std::move(list_);
  }

 private:
  HostList list_;
  std::map<std::string, std::string> seen_;  // address → where
};

// "slots=4", "max-slots=8", "binding=user:0,1": "" or what is wrong.
std::string read_field(std::string_view field, int& slots, int& most_slots, bool& is_ignored) {
  const std::size_t equals = field.find('=');
  const std::string_view key = field.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view{} : field.substr(equals + 1);
  if (key == "slots" || key == "cpu") return read_slots(value, "slots", slots);
  if (key == "max-slots" || key == "max_slots") return read_slots(value, "max-slots", most_slots);
  if (equals != std::string_view::npos &&
      (key == "binding" || key == "ifname" || key == "map" || key == "weight")) {
    is_ignored = true;
    return {};
  }
  return quoted(field) + ": wants slots=N or max-slots=N";
}

// "slots = 4" → "slots=4".
std::string without_blanks_around_equals(std::string_view line) {
  std::string result;
  for (const char letter : line) {
    if (letter == '=' || (!result.empty() && result.back() == '=')) {
      if (letter == '=') result.erase(result.find_last_not_of(kBlanks) + 1);
      if (kBlanks.find(letter) != std::string_view::npos) continue;
    }
    result += letter;
  }
  return result;
}

void read_line(std::string_view raw, const std::string& where, ListReader& reader) {
  const std::string line = without_blanks_around_equals(trimmed(raw.substr(0, raw.find('#'))));
  std::string_view rest = line;
  if (rest.empty()) return;
  const auto next_word = [&rest] {
    const std::size_t end = rest.find_first_of(kBlanks);
    const std::string_view word = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view{} : trimmed(rest.substr(end));
    return word;
  };
  const std::string_view host = next_word();
  int slots = 0;
  int most_slots = 0;
  while (!rest.empty()) {
    const std::string_view field = next_word();
    bool is_ignored = false;
    if (std::string why = read_field(field, slots, most_slots, is_ignored); !why.empty()) {
      return reader.refuse(where, why);
    }
    if (is_ignored) {
      reader.note(where + ": " + quoted(field) + " is another launcher's and means nothing here");
    }
  }
  if (most_slots != 0 && slots > most_slots) {
    return reader.refuse(where, "slots=" + std::to_string(slots) +
                                    " is more than max-slots=" + std::to_string(most_slots));
  }
  reader.add(host, slots != 0 ? slots : most_slots, where);
}

}  // namespace

std::string_view Host::address() const {
  const std::size_t at = name.rfind('@');
  return at == std::string::npos ? std::string_view(name) : std::string_view(name).substr(at + 1);
}

HostList parse_hosts(std::string_view text, const std::string& origin) {
  ListReader reader;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size() && !reader.is_refused(); ++i) {
    const char letter = i < text.size() ? text[i] : ',';
    if (letter == '[') ++depth;
    if (letter == ']') --depth;
    if (letter != ',' || (depth > 0 && i < text.size())) continue;
    const std::string_view item = trimmed(text.substr(begin, i - begin));
    // A comma too much is only that, an empty list is a problem.
    if (!item.empty()) reader.add(item, 0, origin);
    begin = i + 1;
  }
  return reader.finish(origin);
}

HostList parse_host_file(std::string_view text, const std::string& path) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  ListReader reader;
  if (text.size() > kMostHostFileBytes) {
    reader.refuse(path, "more than " + std::to_string(kMostHostFileBytes) + " bytes");
  }
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (int number = 1; !text.empty() && !reader.is_refused(); ++number) {
    const std::size_t end = text.find_first_of("\r\n");
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end);
    if (!text.empty()) text.remove_prefix(text.starts_with("\r\n") ? 2 : 1);
    read_line(line, path + ":" + std::to_string(number), reader);
  }
  return reader.finish(path);
}

std::string filter_hosts(std::vector<Host>& hosts, const std::string& include,
                         const std::string& exclude) {
  for (const bool keeps : {true, false}) {
    const std::string& text = keeps ? include : exclude;
    const std::string flag = keeps ? "--include-hosts" : "--exclude-hosts";
    if (text.empty()) continue;
    const HostList chosen = parse_hosts(text, flag);
    if (!chosen.problem.empty()) return chosen.problem;
    std::set<std::string_view> names;
    for (const Host& each : chosen.hosts) {
      if (each.slots != 0) return flag + "=" + text + ": names hosts, without slots";
      const auto listed = std::find_if(hosts.begin(), hosts.end(), [&](const Host& host) {
        return host.address() == each.address();
      });
      if (listed == hosts.end()) return flag + ": " + each.name + " is not in the list of hosts";
      names.insert(each.address());
    }
    std::erase_if(hosts, [&](const Host& host) { return names.contains(host.address()) != keeps; });
  }
  return hosts.empty() ? "--exclude-hosts: leaves no host" : "";
}

}  // namespace ddprun::launcher
