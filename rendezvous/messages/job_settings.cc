// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/messages/job_settings.h"

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "common/text.h"
#include "common/throw_error.h"
#include "rendezvous/messages/codec.h"

namespace ddprun::membership {
namespace {

// The names of each enumeration's values, in their order.
constexpr std::array kHangActions = {"default", "restart", "report", "off"};
constexpr std::array kStoreModes = {"direct", "proxy"};
constexpr std::array kRecoveries = {"restart", "inplace"};

constexpr const auto& names_of(HangAction) { return kHangActions; }
constexpr const auto& names_of(StoreMode) { return kStoreModes; }
constexpr const auto& names_of(Recovery) { return kRecoveries; }

template <typename Enum>
std::optional<Enum> named(std::string_view name) {
  const auto& names = names_of(Enum());
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

template <typename Enum>
Enum setting_named(const char* name, const std::string& text) {
  const auto value = named<Enum>(text);
  if (value) return *value;
  throw_error(ErrorCode::kProtocol, "message \"join\": settings: \"", name, "\" is \"",
              clean_utf8(text, 32), '"');
}

// The meaning of 0 as a limit of restarts.
enum class Zero { kNone, kNoLimit };

// A row has the name in messages, the flag and the field. The rest depends on the type: a number's
// least and most, a limit's meaning of 0, a switch's words. The flag is "" if nnodes_text() covers
// the setting.
template <MaybeConst<JobSettings> Self, typename Row>
void each_setting(Self& settings, Row row) {
  row("min_nodes", "", settings.min_nodes, 1, kMaxNodes);
  row("max_nodes", "", settings.max_nodes, settings.min_nodes, kMaxNodes);
  row("max_restarts", "--max-restarts", settings.max_restarts, Zero::kNone);
  row("max_node_losses", "--max-node-losses", settings.max_node_losses, Zero::kNone);
  row("max_preemptions", "--max-preemptions", settings.max_preemptions, Zero::kNone);
  row("no_progress_restarts", "--no-progress-restarts", settings.no_progress_restarts,
      Zero::kNoLimit);
  row("exclude_after", "--exclude-after", settings.exclude_after, Zero::kNoLimit);
  row("spares", "--spares", settings.spares, 0, kMaxNodes);
  row("hang_action", "--hang-action", settings.hang_action);
  row("restart_on_join", "--on-join", settings.restart_on_join, "wait", "restart");
  row("rdzv_backend", "--rdzv-backend", settings.rdzv_backend);
  row("store", "--store", settings.store);
  row("recovery", "--recovery", settings.recovery);
}

// Writes or reads a setting as JSON. A setting that is absent has its default: older agents don't
// know it.
template <typename Fields>
class JsonRow {
 public:
  explicit JsonRow(Fields& fields) : fields_(fields) {}
  void operator()(const char* name, const char*, auto& field, int least, int most) {
    if (field < least || fields_.wants(name, true)) fields_.number(name, field, least, most);
  }
  void operator()(const char* name, const char* flag, auto& field, Zero) {
    (*this)(name, flag, field, 0, kMaxInt);
  }
  void operator()(const char* name, const char*, auto& field, const char*, const char*) {
    if (fields_.wants(name, true)) fields_.boolean(name, field);
  }
  template <typename T>
  void operator()(const char* name, const char*, T& field) {
    if (!fields_.wants(name, true)) return;
    if constexpr (!std::is_enum_v<T>) {
      fields_.text(name, field);
    } else {
      std::string text = to_string(field);
      fields_.text(name, text);
      if constexpr (Fields::kReads) field = setting_named<T>(name, text);
    }
  }

 private:
  Fields& fields_;
};

class TextOfEach {
 public:
  using Texts = std::vector<std::pair<std::string, std::string>>;  // flag, value

  explicit TextOfEach(Texts& texts) : texts_(texts) {}
  void operator()(const char*, const char* flag, int field, int, int) {
    if (*flag != '\0') texts_.emplace_back(flag, std::to_string(field));
  }
  void operator()(const char*, const char* flag, int field, Zero) {
    texts_.emplace_back(flag, std::to_string(field));
  }
  void operator()(const char*, const char* flag, bool field, const char* off, const char* on) {
    texts_.emplace_back(flag, field ? on : off);
  }
  void operator()(const char*, const char* flag, const std::string& field) {
    texts_.emplace_back(flag, field);
  }
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void operator()(const char*, const char* flag, Enum field) {
    texts_.emplace_back(flag, to_string(field));
  }

 private:
  Texts& texts_;
};

class LimitOfEach {
 public:
  explicit LimitOfEach(std::vector<RestartLimit>& limits) : limits_(limits) {}
  void operator()(const char*, const char* flag, int field, Zero zero) {
    limits_.push_back(
        {flag + 2, field == 0 && zero == Zero::kNoLimit ? std::nullopt : std::optional(field)});
  }
  void operator()(const char*, const char*, const auto&...) {}  // not a limit of restarts

 private:
  std::vector<RestartLimit>& limits_;
};

TextOfEach::Texts texts_of(const JobSettings& settings) {
  TextOfEach::Texts texts = {{"--nnodes", nnodes_text(settings)}};
  each_setting(settings, TextOfEach(texts));
  return texts;
}

}  // namespace

const char* to_string(HangAction action) {
  return kHangActions.at(static_cast<std::size_t>(action));
}
const char* to_string(StoreMode mode) { return kStoreModes.at(static_cast<std::size_t>(mode)); }
const char* to_string(Recovery recovery) {
  return kRecoveries.at(static_cast<std::size_t>(recovery));
}

std::optional<HangAction> hang_action_named(std::string_view name) {
  return named<HangAction>(name);
}
std::optional<StoreMode> store_mode_named(std::string_view name) { return named<StoreMode>(name); }
std::optional<Recovery> recovery_named(std::string_view name) { return named<Recovery>(name); }

std::string nnodes_text(const JobSettings& settings) {
  if (settings.min_nodes == settings.max_nodes) return std::to_string(settings.min_nodes);
  return concat(settings.min_nodes, ":", settings.max_nodes);
}

std::vector<RestartLimit> restart_limits(const JobSettings& settings) {
  std::vector<RestartLimit> limits;
  each_setting(settings, LimitOfEach(limits));
  return limits;
}

void each_json(const JobSettings& settings, JsonWriter& fields) {
  each_setting(settings, JsonRow(fields));
}
void each_json(JobSettings& settings, JsonReader& fields) {
  each_setting(settings, JsonRow(fields));
}

std::optional<SettingDifference> first_difference(const JobSettings& here,
                                                  const JobSettings& there) {
  if (here == there) return std::nullopt;  // the usual case
  const TextOfEach::Texts ours = texts_of(here), theirs = texts_of(there);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (ours[i].second != theirs[i].second) {
      return SettingDifference{ours[i].first, ours[i].second, theirs[i].second};
    }
  }
  return std::nullopt;
}

}  // namespace ddprun::membership
