// Counter-based random numbers: a value depends on seed, offset and position only, so that replays of a graph,
// which read seed and offset from device memory, are reproducible. The bits differ from those of a real NPU.
#pragma once
#include <cstdint>

namespace emu {

// Uniform in [0, 1), the k-th number of that seed and offset (splitmix64).
inline double uniform(uint64_t seed, uint64_t offset, uint64_t k) {
  uint64_t z = seed * 0x9E3779B97F4A7C15ull + offset * 0xD1B54A32D192ED03ull + (k + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

}  // namespace emu
