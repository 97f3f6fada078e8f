"""The dictionary of the ``text`` generator: 3,271 common English words, in alphabetical order.

Stored seeds must give the same bytes years later, so adding or removing a word is a visible change.
"""

from __future__ import annotations

WORDS = tuple(
    """
    a ability able about above absence absent absolutely absorb academic academy accent accept acceptable access
    accident accomplish account accounting accuracy accuse achieve achievement acid acquire acquisition across act
    acting action active activity actor actual actually acute add addition additional address adequate adjustment
    admit adopt adult advance advanced advantage adventure advice advise adviser affair affect afford afraid after
    afternoon again against age aged agency agenda agent ago agree agreed agreement agriculture ahead aid aim air
    aircraft airline airport alarm album alcohol alert alike alive all allow allowance almost alone along alongside
    already also alter alternative although always am amazing among amount an analysis analyst ancient and anger
    angle angry animal announce announced annual another answer anxiety any anybody anyone anything anyway anywhere
    apart apartment apparent apparently appeal appear appearance apple application applied apply approach
    appropriate approval are area arena argue argument arguments arise arm armed army around arrange arrangement
    array arrest arrival arrive arrow art article artist as aside ask aspect assess assessment asset assign assist
    assistance assistant associated association assume assumption at athlete atmosphere atom attach attack attempt
    attend attention attitude attract attractive attribute auction audience audio aunt author authority auto autumn
    available avenue average avoid award aware awareness away awful baby back background bad badly bag baker balance
    ball ban banana band bank banking bar barely barn barrel barrier base basic basis basket basketball bat bath
    bathroom battery battle bay be beach bean bear beard bearing beast beat beautiful beauty became become becoming
    bed bee been before beg began begin beginning begun behalf behave behavior behind being belief bell belong below
    belt bench bend beneath benefit bent beside besides best bet better between beyond bid big bike bill bin biology
    bird birth birthday bishop bit bite bitter black blade blame blank blanket blast blend bless blind block blood
    bloody bloom blow blue board boast boat body boil bold bolt bone bonus book boost boot booth border born borrow
    boss both bother bottle bottom bought bound boundary bow bowl boy bracket brain brake branch brand brass brave
    bread break breakfast breaking breath breed brick bride bridge brief bright brilliant bring broad broadcast
    broke broken bronze brook broom brother brought brown brush bubble bucket budget bug build builder building
    built bulk bunch burn burning burst bus bush business busy but butterfly button buy buyer by cab cabin cabinet
    cable cafe cake calculate calendar call calling calls calm came camel camera camp campaign campus can canal
    cancel cancer candidate candle candy canvas cap capability capable capacity capital captain capture car carbon
    card care career careful carefully carpet carrier carrot carry cart carve case cash cast castle casual cat catch
    category cattle caught cause cave ceiling celebrate celebration cell center central century certain certainly
    chain chair chairman chalk challenge chamber champion chance change channel chapter character charge charity
    charm chart chase chat cheap check cheek cheer chef chemical chess chest chicken chief child children chin china
    chip chocolate choice choir choose chose chosen church circle circuit citizen city civil claim clash class
    classic classroom clay clean clear clerk click client cliff climate climb clinical clock close closed closely
    closer cloth clothes clothing cloud club cluster coach coal coast coastal coat code coffee coin cold collapse
    colleague collect collection college colonial color column combat combination combine come comedy comfort
    comfortable comic coming command comment commerce commercial commission commitment common communicate community
    company compare comparison compete competition complain complaint complete completely complex component computer
    concentrate concept concern concerning concert conclude conclusion concrete condition conduct confident confirm
    conflict confusion congress connect connected connection conscious consent consequence consider considered
    consist consistent constant constantly construct consumer consumption contact contain content contest context
    continent continue contract contrast control conversion convert convince cook cooking cool cooperation cope
    copper copy coral corn corner corporate corporation correct cost cotton couch council count counter country
    county couple courage course court cousin cover cow crack craft crane crash crazy cream create creative creature
    credit crew crime criminal crisis critic critical criticism crop cross crowd crown crude cruel cruise crush cry
    crystal cultural culture cup cure curl current currently curriculum curve custom customer cut cutting cycle dad
    daily dairy dam damage dance danger dangerous dare dark data database date daughter dawn day days dead deadline
    deaf deal dealer dealing dear death debate debt debut decade decay decide decision deck decline decrease deep
    deer default defeat defend defense define definition degree delay delicate deliver delivery demand democracy
    denial dense density deny department depend dependent deploy deposit depression depth deputy describe
    description desert design designer desire desk desperate despite destination destroy detail detect determine
    develop development device dial dialog dialogue diamond diary dice did diet differ difference different
    difficult difficulty dig digital dimension dinner direct direction directly director dirt dirty disappear
    disaster discipline discover discovery discuss discussion disease dish disorder display dispute distance distant
    distinct distinction distribution district diverse divide divine division do dock doctor document does dog
    dollar domain domestic dominant done door dose dot double doubt down downtown dozen draft drag dragon drain
    drama dramatic drank draw drawer drawing dream dress drew dried drift drill drink driven driver driving drop
    drove drown drum dry duck due dull during dust duty dynamic each eager eagle ear early earn earth ease easily
    east eastern easy eat eating echo economical economics economy edge edit edition editor educated education
    educational effect effective effectively efficiency efficient effort egg eight eighty either elbow elder elect
    election electric electricity electronics element elephant eleven elite else elsewhere embrace emerge emergency
    emotion emotional emphasis empire employ employee employer employment empty enable encounter encourage end
    ending enemy energy engage engine engineer engineering enhance enjoy enormous enough ensure enter entire
    entirely entity entrance entry envelope environment equal equally equipment equity era error escape especially
    essay essential establish established estate estimate ethnic evaluate even evening event eventual eventually
    ever every everybody everyday everything evidence evident evolution evolve exact exactly exam examination
    examine example exceed excellent except exception exchange excited excitement exciting excuse executive exercise
    exhibit exist existence existing exit expand expansion expect expectation expected expense expensive experience
    experiment expert explain explanation explicit exploration explore explosion export expose exposure express
    expression extend extended extension extensive extent external extra extreme extremely eye fable fabric face
    facility facing fact factor factory faculty fade fail failure fair fairly faith fall false fame familiar family
    famous fan fancy far farm farmer fashion fast fat fate father favor favorite fear feast feature federal fee feed
    feel feeling feet fell fellow felt female fence festival fever few fiber fiction field fifteen fifth fifty fig
    fight figure file fill film filter final finance financial find finding fine finger finish fire firm first
    fiscal fish fishing fit fitness five fix flag flame flash flat fleet flesh flight float flock flood floor flour
    flow flower fluid flute fly flying focus fog fold folk follow following food foot football for force ford
    forecast foreign forest forever forge forget fork form formal format formation former formula fort forth fortune
    forty forum forward foster fought found foundation founder four fourth fox fraction frame framework frankly
    fraud free freedom freeze french frequent fresh friend friendly friendship frog from front frost frozen fruit
    frustration fuel full fully fun function fund fundamental funny fur furniture future gain galaxy gallery game
    gap garage garden garlic gas gate gather gave gear gender gene general generally generate generation genetic
    gentle gentleman genuine german get ghost giant gift ginger girl give given glad glass global globe glory glove
    glow glue go goal goat goes gold golden golf gone good goods govern government grab grace grade gradually grain
    grand grandfather grandmother grant grape graph grasp grass grateful grave gravity gray great green greet grew
    grid grief grip grocery gross ground group grow growing grown growth guarantee guard guess guest guidance guide
    guilt guilty guitar gulf guy habit habitat had hair half hall hammer hand handful handle handling hang happen
    happiness happy hard hardly hardware harm harsh has hat have hay hazard he head heal health heap hear hearing
    heart heat heaven heavily heavy hedge heel height held hello helmet help helpful hen her herb here heritage hero
    herself hid hidden hide high highlight highly highway hill him himself hint hip hire his historical history hit
    hobby hold hole holiday holy home honest honey honor hood hook hope horn horror horse hospital host hot hotel
    hour house household housing how however hug huge human humble humor hundred hunger hungry hunt hunter hurry
    hurt husband i ice idea ideal identical identify identity if ignore ill image imagination imagine immediate
    immediately immune impact implication imply import important impose impossible impressed impression improve
    improvement in incentive inch incident include including income increase increased indeed independent index
    indicate indication individual industrial industry infant inflation influence inform informal information
    initial initiative injury ink inn inner innocent input inquiry insect inside insight insist inspection inspector
    install instance instead instinct institute institution instruction instrument intact intellectual intelligence
    intend intense intent intention interaction interest internal internet interval interview into introduce
    invasion invent invest investigate investment invisible invite involve involved iron is island issue it item its
    itself ivory jacket jam jar jaw jeans jersey jet jewel job join joint joke journal journey joy judge juice jump
    june jungle junior jury just justice justify keen keep kept kettle key kick kid kidney kind kindly king kiss kit
    kitchen knee knew knife knight knock knot know knowing knowledge known lab label labor laboratory lack ladder
    lady laid lake lamb lamp land landing landscape lane language lap large largely laser last late later latest
    latter laugh launch law lawn lawyer lay layer lazy lead leader leadership leading leaf league lean learn learned
    learning least leather leave leaves lecture left leg legacy legal legend legislation lemon lend length less
    lesson let letter level lever liberty library license lie life lifetime lift light lightning like likely lime
    limit limitation limited line linen link lion lip liquid list listen listing literally literature little live
    liver living load loan local locate location lock lodge log logic logo lone lonely long look loop loose lord
    lorry lose losing loss lost lot loud love lovely lover low lower loyal luck lucky lump lunch lung luxury machine
    machinery mad made magazine magic mail main mainly maintain maintenance major majority make maker making male
    mall man manage management manager manner manual manufacturer many map march margin marine mark marker market
    marketing married marry mask mass massive master mat match mate material matter maximum maybe mayor me meadow
    meal mean meaning meant meantime measure measured measurement meat mechanism medal media medical medicine medium
    meet meeting melt member membership memory mental mention menu mercy mere merely merge merit merry mess message
    metal meter method microwave middle might migration mild mile military milk mill miller million mind mine
    mineral minimum mining minister ministry minor minority mint minus minute mirror miss mission mistake mix
    mixture mobile mode model moderate modern modest module mom moment momentum money monitor monkey month monthly
    mood moon moral more morning most mostly mother motion motor mount mountain mouse mouth move movement movie much
    mud multiple muscle museum music musical must mutual my myself mysterious mystery myth nail name narrative
    narrow nation national native natural naturally nature navy near nearby nearly neat necessary neck need needle
    negative negotiate neighbor neither nephew nerve nest net network never new newly news newsletter newspaper next
    nice night nightmare nine nineteen no noble nobody noise none noon nor norm normal north northern nose not note
    notebook nothing notice notion noun novel now nowhere nuclear number numerous nurse nut oak obey object
    objective obligation observation observer obstacle obtain obvious obviously occasion occasional occupy ocean odd
    odds of off offense offer office officer official often oh oil old olive on once one ongoing onion online only
    onto open opening opera operate operation operator opinion opponent opportunity oppose opposite opposition
    option or oral orange orbit orchestra order ordinary organ organic organization organize origin original
    originally other otherwise ought our out outcome outdoor outer output outside oven over overall overcome
    overlook own owner oxygen pace pack package packet pad page paid pain paint painter painting pair palace pale
    palm pan panel panic paper parade paragraph parallel parent parish park parking parliament part partial
    partially participant particular partly partner party pass passage passenger passion past patch patent path
    patient patrol pattern pause pay payment peace peach peak pear pearl peel peer pen penalty penny pension people
    pepper percent percentage perception perfect perform performance perhaps period permanent permission permit
    person personal personality personnel perspective persuade pet phase phenomenon philosophy phone photo
    photograph photography phrase physical physician physics piano pick picnic picture pie piece pig pile pill
    pillow pilot pin pine pink pioneer pipe pit pitch pizza place plain plan plane planet planned planning plant
    plastic plate platform plausible play player plaza pleasant please pleasure plenty plot plug plus pocket poem
    poet poetry point polar pole police policeman policy polish polite political politics pond pool poor pope
    popular population porch port portion portrait pose position positive possession possibility possible post pot
    potato potential pound pour poverty powder power powerful practical practice praise pray prayer precious precise
    precisely predict prediction prefer preference pregnant premise preparation prepare presence present
    presentation presidency president press pressure pretty prevent previous previously prey price pride priest
    primary prime prince princess principal principle print prior priority prison privacy private prize probably
    problem procedure proceed process produce producer product production profession professional professor profile
    profit profound program programme progress project prominent promise promising promote prompt proof proper
    property proposal prospect protect protection protein protest protocol proud prove provide provider province
    provision psychology public publication publicly publish published publishing pull pulse pump pupil purchase
    pure purpose purse pursue push put puzzle qualify quality quarter quarterly queen query question quick quickly
    quiet quilt quit quite quota quote rabbit race rack radar radiation radical radio rage rail railroad railway
    rain raise ran ranch random range rank rapid rare rarely rat rate rather rating ratio raw reach react reaction
    read reader readily reading ready real reality really realm rear reason reasonable rebel recall receive recent
    recently recipe recognition record recover recovery red reduce refer reference reflect reflected reflection
    reform refugee refuse regard regime region regional register regret regular reject relate related relation
    relative relatively relax relaxation release relevant reliable relief religion rely remain remainder remark
    remarkable remedy remember remind remote remove render rent repair repeat repeated replace reply report reporter
    represent republic reputation request require requirement rescue research reserve residence resident resist
    resistance resistant resolution resolve resort resource respect respective respond response responsible rest
    restaurant restore restrict result retail retain retire retirement return reveal revenue reverse review revision
    revolution reward rhetoric rhythm rib ribbon rice rich rid ride rider ridge rifle right rigid ring rise rising
    risk rival river road roast rob robot rock rocket rocky rod role roll roman romantic roof room root rope rose
    rough round route routine row royal rub ruin rule ruling run runner running rural rush sacred sad safe safety
    said sail sake salad salary sale salmon salt same sample sand sat satellite satisfy sauce save saving saw say
    saying scale scare scene scent schedule scheme scholarship school science scientific scientist scope score scout
    screen script sea seal search season seat second secret secretary section sector secure security see seed seek
    seem seen segment seize select selection self sell seller send senior sense sensitive sent sequence sergeant
    series serious seriously serve server service session set setting settle settlement seven seventy several severe
    sew shade shadow shake shall shame shape share shark sharp she sheep sheet shelf shell shelter shift shine ship
    shirt shock shoe shoot shop shopping shore short shot should shoulder shout show shower shown shrimp shut shy
    sick side sigh sight sign signal significant significantly silence silent silk silly silver similar simple
    simply since sing singer single sink sister sit site situation six sixth sixty size sketch ski skill skin skirt
    sky sleep slice slide slight slip slope slow slowly small smart smell smile smoke smooth snake snow so soap
    soccer social society sock socket soft soften soil solar sold soldier sole solely solid solution solve some
    somebody somehow someone something sometimes somewhat son song soon sorry sort sought soul sound soup sour
    source south southeast southern space spare spark speak speaker speaking special specialist species specific
    speech speed spell spend spent sphere spice spider spin spirit spiritual spite split spoke spoken sponsor sport
    spot spray spread spring spy squad square stable stack staff stage stain stair stake stamp stand standard
    standing star stare start state statement station statistics statue status stay steady steal steam steel steep
    steer stem step stick stiff still stimulate stir stock stolen stone stood stop storage store stored storm story
    stove strain strand strange strategic strategy stream street strength strengthen stress stretch strict strike
    string strip stroke strong strongly structure struggle student studio study stuff style subject submit substance
    substitute succeed success successful such sudden suddenly suffer suffering sufficient sugar suggest suggestion
    suit suitable sum summary summer summit sun sunny super supply support suppose supreme sure surely surface surge
    surgeon surprise surprised surrounding survey survival survive suspect sustain swear sweat sweep sweet swim
    swimming swing switch switching sword symbol symbolic sympathy system table tackle tag tail take taken tale
    talent talk tall tank tap tape target task taste tax tea teach teacher teaching team teammate tear technical
    technique technology teen teenager teeth telephone television tell temperature temple temporary ten tenant tend
    tendency tender tennis tension tent term terminal terrible territory test text textile than thank thanks that
    the theater theft their them theme themselves then theory therapy there therefore these they thick thief thin
    thing think thinking third thirteen thirty this thoroughly those though thought thousand thread threat three
    threshold threw through throw thrown thumb thus ticket tide tidy tie tiger tight tile timber time tin tiny tip
    tire tired tissue title to toast tobacco today toe together token told tomorrow ton tone tongue tonight too took
    tool tooth top topic torch total touch tough tour tourism tournament toward towards tower town toxic toy trace
    track trade trading tradition traditional traffic trail train training trait transaction transfer transform
    transformation transition translate transport trash travel treasure treat treatment treaty tree trend trial
    triangle tribe trick trip troop trophy tropical trouble truck true truly trunk trust truth try tube tune tunnel
    turkey turn turtle twelve twenty twice twin twist two type typical typically ugly ultimate ultimately unable
    uncle under understand unfortunate uniform union unique unit unite unity universal universe university unknown
    unless unlike unlikely until unusual up update upon upper upset upstairs urban urge us usage use used useful
    user usual usually vacation valid valley valuable value valve van vanish variable variation variety vary vast
    vegetable vegetation vehicle vendor venture verb version versus vertical very vessel veteran via vice victim
    victory video view village violence violent violin virus visible vision visit visitor visual vital vivid vocal
    voice volatile volume volunteer vote voter vulnerable wage wagon waist wait waiting wake walk walker wall wallet
    wander want war ward warm warmth warn warning was wash waste watch water wave wax way we weak wealth wealthy
    weapon wear weary weather web wedding week weekend weekly weigh weight weird welcome welfare well went were west
    western wet whale what whatever wheat wheel when where whereas whether which while white who whole whom whose
    why wide widespread widow width wife wild wildlife will willing win wind window wine wing winner winter wipe
    wire wireless wisdom wise wish with withdraw within without witness wizard wolf woman wonder wonderful wood
    wooden wool word wore work worker working workshop world worm worried worry worse worst worth would wound wrap
    wrist write writer writing written wrong wrote yard year yellow yes yet yield you young your yourself youth zero
    zone zoo
    """.split()
)
