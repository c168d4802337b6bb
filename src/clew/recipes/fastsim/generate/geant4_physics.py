"""Electromagnetic processes of Geant4 with models that need no data files.

The Python bindings do not have single processes, but their shared library exports the C++ symbols. They are called by
their mangled names, so this works with one version of the package (see `geant4.VERSION`).

| particle | processes and models |
| --- | --- |
| photon | photo-electric effect (PEEffectFluo, no fluorescence), Compton (Klein-Nishina), pairs (PairProductionRel) |
| electron, positron | multiple scattering (Urban), ionisation (Moller-Bhabha), bremsstrahlung (eBremsstrahlungRel) |
| positron | annihilation to two photons |

There is no Rayleigh scattering, and no bremsstrahlung below 1 MeV.
"""

from __future__ import annotations

import ctypes

NAME = "ERK8G4String"
NAME_TYPE = "ERK8G4String13G4ProcessType"
PARTICLE_NAME = "EPK20G4ParticleDefinitionRK8G4String"
"""Mangled arguments of constructors."""
_OBJECT_BYTES = 16384
"""More than any process or model needs."""
_ELECTROMAGNETIC = ctypes.c_int(2)
Pointer = ctypes.c_void_p


class CppLibrary:
    """Calls of C++ functions in a shared library.

    Args:
        path: The library. Python must have loaded it.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.PyDLL(path)
        self._allocate = ctypes.CDLL("libstdc++.so.6")._Znwm
        self._allocate.restype, self._allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        self._strings: list[ctypes.Array[ctypes.c_char]] = []

    def address(self, symbol: str) -> int:
        """Return the address of a symbol."""
        return ctypes.addressof(ctypes.c_char.in_dll(self._library, symbol))

    def call(self, symbol: str, *arguments: object, returns: type | None = None) -> object:
        """Call a function by its mangled name."""
        function = getattr(self._library, symbol)
        function.restype = returns
        return function(*arguments)

    def pointer(self, symbol: str) -> Pointer:
        """Call a function without arguments that returns a pointer."""
        address = self.call(symbol, returns=ctypes.c_void_p)
        assert isinstance(address, int)
        return Pointer(address)

    def new(self, name: str, signature: str, *arguments: object) -> Pointer:
        """Return a new object of a class, which is never deleted. `signature`: mangled arguments of the constructor."""
        address = self._allocate(_OBJECT_BYTES)
        ctypes.memset(address, 0, _OBJECT_BYTES)
        self.call(f"_ZN{len(name)}{name}C1{signature}", Pointer(address), *arguments)
        return Pointer(address)

    def string(self, text: str) -> Pointer:
        """Return a `std::string` of at most 15 characters (the layout of libstdc++)."""
        raw = text.encode()
        assert len(raw) < 16
        memory = ctypes.create_string_buffer(32)
        start = ctypes.addressof(memory)
        ctypes.c_uint64.from_address(start).value = start + 16
        ctypes.c_uint64.from_address(start + 8).value = len(raw)
        ctypes.memmove(start + 16, raw, len(raw))
        self._strings.append(memory)
        return Pointer(start)


def register_processes(library: CppLibrary) -> None:
    """Give photons, electrons and positrons their processes.

    Raises:
        RuntimeError: Geant4 does not accept a process.
    """
    helper = library.pointer("_ZN19G4PhysicsListHelper20GetPhysicsListHelperEv")
    library.call("_ZN19G4PhysicsListHelper17AddTransportationEv", helper)
    photon = library.pointer("_ZN7G4Gamma5GammaEv")
    electron = library.pointer("_ZN10G4Electron8ElectronEv")
    positron = library.pointer("_ZN10G4Positron8PositronEv")
    pairs = [(process, photon) for process in _photon_processes(library)]
    for particle in (electron, positron):
        pairs += [(process, particle) for process in _electron_processes(library)]
    pairs.append((library.new("G4eplusAnnihilation", NAME, library.string("annihil")), positron))
    register = "_ZN19G4PhysicsListHelper15RegisterProcessEP10G4VProcessP20G4ParticleDefinition"
    for process, particle in pairs:
        if not library.call(register, helper, process, particle, returns=ctypes.c_bool):
            raise RuntimeError("Geant4 did not accept a process")


def _photon_processes(library: CppLibrary) -> list[Pointer]:
    name, anyone = library.string, Pointer(None)
    models = {
        ("G4PhotoElectricEffect", "phot"): library.new("G4PEEffectFluoModel", NAME, name("PhotoElectric")),
        ("G4ComptonScattering", "compt"): library.new(
            "G4KleinNishinaCompton", PARTICLE_NAME, anyone, name("KleinNishina")
        ),
        ("G4GammaConversion", "conv"): library.new(
            "G4PairProductionRelModel", PARTICLE_NAME, anyone, name("PairProdRel")
        ),
    }
    processes = []
    for (kind, label), model in models.items():
        process = library.new(kind, NAME_TYPE, name(label), _ELECTROMAGNETIC)
        library.call("_ZN12G4VEmProcess10SetEmModelEP10G4VEmModeli", process, model, ctypes.c_int(0))
        processes.append(process)
    return processes


def _electron_processes(library: CppLibrary) -> list[Pointer]:
    name, anyone = library.string, Pointer(None)
    scattering = library.new("G4eMultipleScattering", NAME, name("msc"))
    urban = library.new("G4UrbanMscModel", NAME, name("UrbanMsc"))
    set_model = "_ZN21G4VMultipleScattering10SetEmModelEP11G4VMscModeli"
    library.call(set_model, scattering, urban, ctypes.c_int(0))
    ionisation = library.new("G4eIonisation", NAME, name("eIoni"))
    radiation = library.new("G4eBremsstrahlung", NAME, name("eBrem"))
    models = [(ionisation, 0, "G4MollerBhabhaModel", "MollerBhabha")]
    # the first model of bremsstrahlung is used up to 1 GeV: without this one it would read data files
    models += [(radiation, number, "G4eBremsstrahlungRelModel", "eBremLPM") for number in (0, 1)]
    for process, number, kind, label in models:
        model = library.new(kind, PARTICLE_NAME, anyone, name(label))
        symbol = "_ZN20G4VEnergyLossProcess10SetEmModelEP10G4VEmModeli"
        library.call(symbol, process, model, ctypes.c_int(number))
    return [scattering, ionisation, radiation]
