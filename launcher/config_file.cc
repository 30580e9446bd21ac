// SPDX-License-Identifier: Apache-2.0
#include "launcher/config_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "common/env_names.h"
#include "common/error.h"
#include "common/suggest.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
constexpr char kSystemFile[] = "/etc/ddprun/ddprun.toml";

[[noreturn]] void refuse(const std::string& path, const toml::source_region& where,
                         const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument,
              path + ":" + std::to_string(where.begin.line) + ": " + what);
}

std::string text_of(const toml::node& node, const std::string& path, const std::string& what) {
  const auto* value = node.as_string();
  if (!value) refuse(path, node.source(), what);
  return value->get();
}

// The whole file; nullopt where there is none.
std::optional<std::string> read_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    throw Error(ErrorCode::kInvalidArgument, "can't read " + path + ": " + errno_text(errno));
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    throw Error(ErrorCode::kInvalidArgument, "can't read " + path + ": it is no regular file");
  }
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
    if (size == 0) return text;
    if (size < 0) {
      throw Error(ErrorCode::kInvalidArgument, "can't read " + path + ": " + errno_text(errno));
    }
    text.append(buffer.data(), static_cast<std::size_t>(size));
    if (text.size() > kMaxFileBytes) {
      throw Error(ErrorCode::kInvalidArgument, "can't read " + path + ": it has more than 1 MiB");
    }
  }
}

}  // namespace

ConfigFile parse_config_file(std::string_view text, const std::string& path) {
  ConfigFile config;
  config.path = path;
  toml::table table;
  try {
    table = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    refuse(path, error.source(), std::string(error.description()));
  }
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (name == "rdzv_endpoint") {
      config.rdzv_endpoint = text_of(node, path, "rdzv_endpoint wants \"HOST:PORT\"");
    } else if (name == "hosts") {
      const toml::array* hosts = node.as_array();
      if (!hosts) refuse(path, node.source(), "hosts wants [\"host1\", \"host2\"]");
      for (const toml::node& host : *hosts) {
        config.hosts.push_back(text_of(host, path, "hosts wants [\"host1\", \"host2\"]"));
      }
    } else if (name == "topology") {
      config.topology = text_of(node, path, "topology wants \"SWITCH.SWITCH\", widest first");
    } else if (name == "preflight") {
      config.preflight = text_of(node, path, "preflight wants \"COMMAND\"");
    } else {
      refuse(path, key.source(),
             "unknown key " + name +
                 did_you_mean(name, {"rdzv_endpoint", "hosts", "topology", "preflight"}));
    }
  }
  return config;
}

std::vector<ConfigFile> load_config_files(const Environment& environment) {
  std::vector<std::string> paths;
  if (const auto xdg = find_variable(environment, env::kXdgConfigHome)) {
    paths.push_back(*xdg + "/ddprun/ddprun.toml");
  } else if (const auto home = find_variable(environment, env::kHome)) {
    paths.push_back(*home + "/.config/ddprun/ddprun.toml");
  }
  paths.emplace_back(kSystemFile);
  std::vector<ConfigFile> files;
  for (const std::string& path : paths) {
    if (const auto text = read_file(path)) files.push_back(parse_config_file(*text, path));
  }
  return files;
}

}  // namespace ddprun::launcher
