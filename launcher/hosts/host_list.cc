// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_list.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/endpoint.h"
#include "common/error.h"
#include "common/nodelist.h"
#include "common/text.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

constexpr int kMostSlots = 65'536;
constexpr std::string_view kBlanks = " \t";

template <typename... Parts>
[[noreturn]] void refuse_list(const std::string& where, const Parts&... why) {
  throw Error(ErrorCode::kInvalidArgument, concat(where, ": ", why...));
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kMost = 80;
  const std::string shown(text.substr(0, kMost));
  return "\"" + one_line(shown) + (text.size() > kMost ? "…\"" : "\"");
}

int read_slots(std::string_view text, const std::string& where, const char* key) {
  const auto slots = parse_number(text, kMostSlots);
  if (!slots) {
    refuse_list(where, key, " ", quoted(text), ": wants a number from 1 to ", kMostSlots);
  }
  if (*slots == 0) refuse_list(where, key, " 0: a host without room is to be left out");
  return *slots;
}

// Whether it is "" or "USER@", without characters for a shell: ssh's ProxyCommand may have it as
// %r.
bool is_user(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char letter) {
    return letter >= 0x80 || std::isalnum(letter) != 0 ||
           (letter != 0 && std::strchr("._-+@", letter) != nullptr);
  });
}

// Expands "user@n[01-04]" into names. nullopt: the text is wrong.
std::optional<std::vector<std::string>> expand(std::string_view text) {
  const std::size_t at = text.rfind('@');
  const std::string user(at == std::string_view::npos ? "" : text.substr(0, at + 1));
  text.remove_prefix(user.size());
  std::optional<std::vector<std::string>> names;
  if (text.starts_with('[') && text.ends_with(']') && text.find(':') != std::string_view::npos) {
    names = {std::string(text.substr(1, text.size() - 2))};  // an IPv6 address
  } else if (text.find(',') == std::string_view::npos || text.find('[') < text.find(',')) {
    names = expand_nodelist(text);
  }
  if (!names || !is_user(user)) return std::nullopt;
  for (std::string& name : *names) {
    // ssh would read a name that begins with "-" as an option.
    if (!is_host(name) || name.starts_with('-') || user.starts_with('-')) return std::nullopt;
    name.insert(0, user);
  }
  return names;
}

class ListReader {
 public:
  // Adds one host or range, maybe with ":SLOTS". `slots` (0: none) was given beside it.
  void add(std::string_view item, int slots, const std::string& where) {
    std::size_t colon = item.rfind(':');
    const bool is_in_brackets = item.find(']', std::min(colon, item.size())) != item.npos;
    if (is_in_brackets) colon = item.npos;
    // The last part could be the address' or a number of slots.
    if (colon != item.npos && item.find('[') == item.npos && item.find(':') != colon) {
      const std::string_view host = item.substr(item.rfind('@') + 1);
      const std::string shown = one_line(host.substr(0, 45));  // no address is longer
      refuse_list(where, quoted(item), ": an IPv6 address stands in brackets, as in [", shown, "]");
    }
    if (colon != std::string_view::npos) {
      const int told = read_slots(item.substr(colon + 1), where + ": " + quoted(item), "slots");
      if (slots != 0 && slots != told) {
        refuse_list(where, quoted(item), " has two numbers of slots");
      }
      slots = told;
    }
    const std::string_view name = item.substr(0, colon);
    const auto names = expand(name);
    if (!names) {
      refuse_list(where, quoted(item),
                  " is no host and no range of hosts (n1, n[01-04], user@n1, [IPV6])");
    }
    for (const std::string& each : *names) {
      Host host{.name = each, .slots = slots, .where = where};
      const auto [first, is_new] = seen_.try_emplace(host.address(), where);
      if (!is_new) {
        refuse_list(where, host.name, " is named a second time (first: ", first->second, ")");
      }
      list_.hosts.push_back(std::move(host));
    }
    if (list_.hosts.size() > kMostHosts) {
      refuse_list(where, "more than ", kMostHosts, " hosts");
    }
  }

  void read_line(std::string_view line, const std::string& where);

  HostList finish(const std::string& origin) {
    if (list_.hosts.empty()) refuse_list(origin, "names no host");
    return std::move(list_);
  }

 private:
  HostList list_;
  std::map<std::string, std::string> seen_;  // address → where it was named
};

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

void ListReader::read_line(std::string_view raw, const std::string& where) {
  const std::string line = without_blanks_around_equals(trimmed(raw.substr(0, raw.find('#'))));
  std::string_view rest = line;
  if (rest.empty()) return;
  const auto next_word = [&rest] {
    const std::string_view word = rest.substr(0, rest.find_first_of(kBlanks));
    rest = trimmed(rest.substr(word.size()));
    return word;
  };
  const std::string_view host = next_word();
  int slots = 0;
  int most_slots = 0;
  while (!rest.empty()) {
    const std::string_view field = next_word();
    const std::size_t equals = std::min(field.find('='), field.size());
    const std::string_view key = field.substr(0, equals);
    const std::string_view value = field.substr(std::min(equals + 1, field.size()));
    if (key == "slots" || key == "cpu") {
      slots = read_slots(value, where, "slots");
    } else if (key == "max-slots" || key == "max_slots") {
      most_slots = read_slots(value, where, "max-slots");
    } else if (equals < field.size() &&
               (key == "binding" || key == "ifname" || key == "map" || key == "weight")) {
      list_.notes.push_back(
          concat(where, ": ", quoted(field), " is another launcher's and is ignored"));
    } else {
      refuse_list(where, quoted(field), ": wants slots=N or max-slots=N");
    }
  }
  if (most_slots != 0 && slots > most_slots) {
    refuse_list(where, "slots=", slots, " is more than max-slots=", most_slots);
  }
  add(host, slots != 0 ? slots : most_slots, where);
}

}  // namespace

std::string Host::address() const { return name.substr(name.rfind('@') + 1); }

HostList parse_hosts(std::string_view text, const std::string& origin) {
  ListReader reader;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char letter = i < text.size() ? text[i] : ',';
    if (letter == '[') ++depth;
    if (letter == ']') --depth;
    if (letter != ',' || (depth > 0 && i < text.size())) continue;
    const std::string_view item = trimmed(text.substr(begin, i - begin));
    // A superfluous comma is harmless, but an empty list is a problem.
    if (!item.empty()) reader.add(item, 0, origin);
    begin = i + 1;
  }
  return reader.finish(origin);
}

HostList parse_host_file(std::string_view text, const std::string& path) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.size() > kMostHostFileBytes) {
    refuse_list(path, "more than ", kMostHostFileBytes, " bytes");
  }
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  ListReader reader;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find_first_of("\r\n"));
    text.remove_prefix(line.size());
    if (!text.empty()) text.remove_prefix(text.starts_with("\r\n") ? 2 : 1);
    reader.read_line(line, concat(path, ":", number));
  }
  return reader.finish(path);
}

void filter_hosts(std::vector<Host>& hosts, const std::string& include,
                  const std::string& exclude) {
  for (const bool keeps : {true, false}) {
    const std::string& text = keeps ? include : exclude;
    const std::string flag = keeps ? "--include-hosts" : "--exclude-hosts";
    if (text.empty()) continue;
    const HostList chosen = parse_hosts(text, flag);
    std::set<std::string> names;
    for (const Host& each : chosen.hosts) {
      if (each.slots != 0) refuse_list(flag + "=" + text, "names hosts, without slots");
      const auto is_it = [&](const Host& host) { return host.address() == each.address(); };
      if (std::none_of(hosts.begin(), hosts.end(), is_it)) {
        refuse_list(flag, each.name, " is not in the list of hosts");
      }
      names.insert(each.address());
    }
    std::erase_if(hosts, [&](const Host& host) { return names.contains(host.address()) != keeps; });
  }
  if (hosts.empty()) refuse_list("--exclude-hosts", "leaves no host");
}

}  // namespace ddprun::launcher
